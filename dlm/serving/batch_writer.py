"""Writer of a batch's two files, of answers and of errors."""

import json
from collections.abc import Callable, Mapping
from threading import Lock

from dlm.batch.batch import AnswerRow
from dlm.openai.batches import BatchState
from dlm.serving.file_store import FileStore, StoredFile
from dlm.serving.records import StoredRecords

OUTPUT = "batch_output"  # the purpose of its files


class BatchWriter:
    """Writer of a batch's two files, of answers and of errors. Threads call it. A file is created
    with its first line."""

    def __init__(self, store: FileStore, records: StoredRecords, batch: BatchState):
        self._store, self._records, self._batch = store, records, batch
        self._files: dict[bool, StoredFile] = {}  # by whether their rows have failed
        self.written = set[int]()  # numbers of rows
        self._closed = False
        self._lock = Lock()  # one thread writes at a time

    def hold(self) -> int:
        """Hold the files of an earlier server, and return how many bytes they have. Raises
        `UnknownFileError`."""
        batch = self._batch
        for failed, id in ((False, batch.output_file), (True, batch.error_file)):
            if id is not None:
                self._files[failed] = self._store.hold(batch.client, id)
        return sum(file.size for file in self._files.values())

    def resume(self, row_of: Callable[[AnswerRow], int]) -> None:
        """Go on with the files that are held, up to a line that was not written whole. `row_of`
        returns the number of a line's row."""
        batch = self._batch
        for failed, file in self._files.items():
            numbers, size = set[int](), 0
            with file.path.open("rb") as opened:
                for line in opened:
                    if self._closed:
                        return
                    try:
                        number = row_of(json.loads(line))
                    except (ValueError, LookupError, TypeError):
                        break
                    if not line.endswith(b"\n"):
                        break
                    numbers.add(number)
                    size += len(line)
            if size < file.size:
                self._store.cut(file, size)
            if failed:
                batch.failed = len(numbers)
            else:
                batch.completed = len(numbers)
            self.written |= numbers

    def write(self, lines: Mapping[int, bytes], failed: bool) -> None:
        """Write the answers to rows, or the errors of rows that have `failed`, by their numbers:
        those of rows that have no line yet, all or none, and none if the batch has ended. Raises
        `StorageFullError`."""
        with self._lock:
            new = {} if self._closed else {n: lines[n] for n in lines if n not in self.written}
            if not new:
                return
            if failed not in self._files:
                self._create(failed)
            self._store.append(self._files[failed], b"".join(new.values()))
            self.written.update(new)
            if failed:
                self._batch.failed += len(new)
            else:
                self._batch.completed += len(new)

    def close(self) -> None:
        """Write no more; lines that are being written are finished."""
        with self._lock:
            self._closed = True
            for file in self._files.values():
                self._store.release(file)

    def _create(self, failed: bool) -> None:
        name = f"{self._batch.id}_{'error' if failed else 'output'}.jsonl"
        file = self._files[failed] = self._store.create(self._batch.client, name, OUTPUT)
        if failed:
            self._batch.error_file = file.id
        else:
            self._batch.output_file = file.id
        self._records.write(self._batch.id, self._batch.record)
