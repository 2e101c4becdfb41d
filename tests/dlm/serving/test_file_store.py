"""Files of clients: bounds, expiry, and disks that take no more."""

import errno
from pathlib import Path

import pytest

from dlm import DlmError
from dlm.serving import file_store
from dlm.serving.file_store import FileStore
from dlm.serving.records import owned


def add(files, client="a", content=b"3", **more):
    return files.add(client, "rows", "batch", content, **more)


def test_files_expire_and_are_bounded_in_number(tmp_path):
    now = [0.0]
    files = FileStore(tmp_path, 4 << 20, lambda: now[0])
    old, kept = add(files, seconds=10), add(files, seconds=10)
    files.hold("a", kept.id)
    now[0] = 10.0
    assert files.of("a") == [kept]
    assert not old.path.exists()
    for _ in range(199):
        add(files)
    with pytest.raises(DlmError, match="files must be at most 200 of a client"):
        add(files)
    add(files, "b")
    files.release(kept)
    assert kept not in files.of("a")
    add(files)


def test_files_of_all_clients_are_bounded_in_number(tmp_path, monkeypatch):
    monkeypatch.setattr(file_store, "_MOST_OF_ALL", 2)
    files = FileStore(tmp_path, 1 << 20)
    first, _ = add(files, "a"), add(files, "b")
    with pytest.raises(DlmError, match="files must be at most 2 of all clients"):
        add(files, "c")
    assert len([*tmp_path.iterdir()]) == 2 * 2  # with their records
    files.delete("a", first.id)
    add(files, "c")


def test_a_small_file_counts_4_kib(tmp_path):
    files = FileStore(tmp_path, 8 * 4096)
    own = [add(files) for _ in range(4)]
    with pytest.raises(DlmError, match="takes 4096 bytes, and the server has room for 0"):
        add(files)
    files.delete("a", own[0].id)
    with pytest.raises(DlmError, match="takes 5000 bytes, and the server has room for 4096"):
        add(files, content=b"3" * 5000)
    add(files, content=b"3" * 4096)
    add(files, "b")


def test_a_folder_that_takes_no_files_is_refused(tmp_path):
    files = FileStore(tmp_path / "missing", 1 << 20)
    with pytest.raises(DlmError, match="cannot write the file to its disk: No such file"):
        add(files)
    assert files.of("a") == []


def test_a_full_disk_is_refused_and_counts_nothing(tmp_path):
    files = FileStore(tmp_path, 8 * 4096)
    file = files.create("a", "rows", "batch")
    files.append(file, b"3")
    path, file.path = file.path, Path("/dev/full")
    with pytest.raises(DlmError, match="to its disk: No space left on device"):
        files.append(file, b"3" * 10_000)
    assert file.size == 1
    other = add(files, content=b"3" * 12_288)
    files.delete("a", other.id)
    file.path = path
    files.append(file, b"3" * 10_000)
    assert path.stat().st_size == file.size == 10_001
    add(files)
    with pytest.raises(DlmError, match="room for 2287"):
        add(files)


def test_a_later_store_has_the_files_that_were_complete(tmp_path):
    before = FileStore(tmp_path, 1 << 20, lambda: 0.0)
    kept, deleted = add(before, content=b"33"), add(before, "b")
    expiring = add(before, "b", seconds=10)
    before.delete("b", deleted.id)
    output = before.create("a", "answers", "batch_output")
    before.append(output, b"{}")
    torn = tmp_path / f"file-{'0' * 24}"  # a crash came before its record
    torn.write_bytes(b"3")
    (tmp_path / f"file-{'1' * 24}.new").touch()  # a crash came while it was written
    (tmp_path / "file-of-another").write_bytes(b"3")
    after = FileStore(tmp_path, 1 << 20, lambda: 10.0)
    assert [file.body() for file in after.of("a")] == [output.body(), kept.body()]
    assert after.of("b") == []
    assert not any(path.exists() for path in (torn, deleted.path, expiring.path))
    assert {path.name for path in tmp_path.iterdir()} == {
        "file-of-another",
        *(name for file in (kept, output) for name in (file.id, f"{file.id}.json")),
    }
    after.delete("a", output.id)
    with pytest.raises(DlmError, match="takes 600000 bytes, and the server has room for 520192"):
        add(after, content=b"3" * 600_000)


def test_a_directory_is_of_one_server(tmp_path):
    directory = tmp_path / "made" / "here"
    with (
        owned(directory),
        pytest.raises(DlmError, match="must be of one server, and another one uses it"),
        owned(directory),
    ):
        pass
    with owned(directory):
        pass
    (tmp_path / "file").touch()
    with (
        pytest.raises(DlmError, match=r"the directory of files must be writable: .*File exists"),
        owned(tmp_path / "file"),
    ):
        pass


@pytest.mark.parametrize("damage", ["{}", '{"client": 3', '{"path": 1}', None])
def test_a_file_that_is_damaged_is_logged_and_left(tmp_path, caplog, damage):
    before = FileStore(tmp_path, 1 << 20, lambda: 0.0)
    damaged, whole = add(before, content=b"333"), add(before)
    record = tmp_path / f"{damaged.id}.json"
    if damage is None:
        damaged.path.write_bytes(b"33")
    else:
        record.write_text(damage)
    after = FileStore(tmp_path, 1 << 20, lambda: 0.0)
    assert [file.body() for file in after.of("a")] == [whole.body()]
    assert f"{record} cannot be read, and is left as it is" in caplog.text
    if damage is None:
        assert "must have at least 3 bytes, got 2" in caplog.text
    assert record.exists()
    assert damaged.path.exists()


def test_a_disk_without_locks_is_refused(tmp_path, monkeypatch):
    with pytest.raises(BlockingIOError), owned(tmp_path):  # it is no error of the directory
        raise BlockingIOError

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(DlmError, match="must be on a disk with locks"), owned(tmp_path):
        pass
