"""Responses that a server keeps, so that clients can continue, read and delete them.

Each client sees its own alone. The store is bounded in responses and in bytes: when it is full, the
client that has most of it loses the response that it has not used for longest. Nothing is written
to disk. Used from several threads.
"""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

from dlm.errors import RequestError
from dlm.openai.body import Body

_ENTRY = 1024  # bytes that a response takes at least


class UnknownResponseError(RequestError):
    """Error for a response that is not stored: an HTTP 404."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A finished response, and what it answers."""

    response: Body
    items: list[Body]  # of its body's input
    previous: str | None  # id of the response that it continues
    size: int  # bytes, about
    turn_size: int = 0  # bytes of its items and its output, a part of `size`

    @property
    def taken(self) -> int:
        """Bytes that count for the limit."""
        return _ENTRY + self.size


class _Shelf:
    """Responses of one client, the one that has been used last at the end."""

    def __init__(self) -> None:
        self.responses = OrderedDict[str, StoredResponse]()
        self.size = 0  # bytes of all of them

    def put(self, stored: StoredResponse) -> None:
        self.responses[stored.response["id"]] = stored
        self.size += stored.taken

    def remove(self, id: str) -> StoredResponse:
        stored = self.responses.pop(id)
        self.size -= stored.taken
        return stored


class ResponseStore:
    """Responses of all clients."""

    def __init__(
        self, most: int = 1000, most_bytes: int = 64 << 20, conversation_bytes: int = 16 << 20
    ):
        """Keep at most `most` responses, 0 for none, of `most_bytes` together. A conversation of
        over `conversation_bytes` is not continued."""
        self._most, self._most_bytes = most, most_bytes
        self.conversation_bytes = conversation_bytes
        self._clients: dict[str, _Shelf] = {}
        self._count, self._size = 0, 0  # responses of all clients, and their bytes
        self._lock = Lock()

    def of(self, client: str) -> "ClientResponses":
        """Return the responses of one client."""
        return ClientResponses(self, client)

    @property
    def kept(self) -> bool:
        """Whether responses are kept at all."""
        return self._most > 0

    def put(self, client: str, stored: StoredResponse) -> None:
        with self._lock:
            self._clients.setdefault(client, _Shelf()).put(stored)
            self._count += 1
            self._size += stored.taken
            while self._count > self._most or self._size > self._most_bytes:
                largest = max(self._clients, key=lambda one: self._clients[one].size)
                self._remove(largest, next(iter(self._clients[largest].responses)))

    def get(self, client: str, id: str) -> StoredResponse | None:
        """Return a response, which then counts as used last."""
        with self._lock:
            if (shelf := self._clients.get(client)) is None or id not in shelf.responses:
                return None
            shelf.responses.move_to_end(id)
            return shelf.responses[id]

    def delete(self, client: str, id: str) -> bool:
        """Delete a response; return whether it was there."""
        with self._lock:
            shelf = self._clients.get(client)
            found = shelf is not None and id in shelf.responses
            if found:
                self._remove(client, id)
            return found

    def _remove(self, client: str, id: str) -> None:
        shelf = self._clients[client]
        self._size -= shelf.remove(id).taken
        self._count -= 1
        if not shelf.responses:
            del self._clients[client]


@dataclass(frozen=True, slots=True)
class ClientResponses:
    """Responses of one client."""

    store: ResponseStore
    client: str

    @property
    def kept(self) -> bool:
        return self.store.kept

    def put(self, stored: StoredResponse) -> None:
        self.store.put(self.client, stored)

    def get(self, id: str) -> StoredResponse:
        """Return a response. Raises `UnknownResponseError`."""
        if (found := self.store.get(self.client, id)) is None:
            raise UnknownResponseError(f"there is no response {id!r:.60} here")
        return found

    def delete(self, id: str) -> None:
        """Delete a response. Raises `UnknownResponseError`."""
        if not self.store.delete(self.client, id):
            raise UnknownResponseError(f"there is no response {id!r:.60} here")

    def conversation(self, id: str) -> list[Body]:
        """Return the items of a response's whole conversation, its output included. Raises
        `RequestError` if a part of it is not stored any more, or if it is too long."""
        turns: list[list[Body]] = []
        size = 0
        at: str | None = id
        while at is not None:
            if (found := self.store.get(self.client, at)) is None:
                gone = "is not stored here" if at == id else "continues one that is not stored here"
                kept = "" if self.kept else ": this server stores none"
                raise RequestError(
                    f"previous_response_id {id!r:.60} {gone}{kept}; send all items as input",
                    field="previous_response_id",
                )
            size += found.turn_size
            if size > self.store.conversation_bytes:
                raise RequestError(
                    f"previous_response_id {id!r:.60} continues a conversation of over "
                    f"{self.store.conversation_bytes} bytes: send the items that matter as input",
                    field="previous_response_id",
                )
            turns.append([*found.items, *found.response["output"]])
            at = found.previous
        return [item for turn in reversed(turns) for item in turn]
