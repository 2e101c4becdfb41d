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


class ResponseStore:
    """Responses of all clients."""

    def __init__(self, most: int = 1000, most_bytes: int = 64 << 20):
        """Keep at most `most` responses, 0 for none, of `most_bytes` together."""
        self._most, self._most_bytes = most, most_bytes
        self._clients: dict[str, OrderedDict[str, StoredResponse]] = {}
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
            self._clients.setdefault(client, OrderedDict())[stored.response["id"]] = stored
            while self._count() > self._most or self._size() > self._most_bytes:
                largest = max(self._clients, key=self._size_of)
                self._clients[largest].popitem(last=False)
                if not self._clients[largest]:
                    del self._clients[largest]

    def get(self, client: str, id: str) -> StoredResponse | None:
        """Return a response, which then counts as used last."""
        with self._lock:
            own = self._clients.get(client, OrderedDict())
            if id in own:
                own.move_to_end(id)
            return own.get(id)

    def delete(self, client: str, id: str) -> bool:
        """Delete a response; return whether it was there."""
        with self._lock:
            return self._clients.get(client, OrderedDict()).pop(id, None) is not None

    def _count(self) -> int:
        return sum(map(len, self._clients.values()))

    def _size(self) -> int:
        return sum(map(self._size_of, self._clients))

    def _size_of(self, client: str) -> int:
        return sum(_ENTRY + one.size for one in self._clients[client].values())


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
        `RequestError` if a part of it is not stored any more."""
        turns: list[list[Body]] = []
        at: str | None = id
        while at is not None:
            if (found := self.store.get(self.client, at)) is None:
                gone = "is not stored here" if at == id else "continues one that is not stored here"
                kept = "" if self.kept else ": this server stores none"
                raise RequestError(
                    f"previous_response_id {id!r:.60} {gone}{kept}; send all items as input",
                    field="previous_response_id",
                )
            turns.append([*found.items, *found.response["output"]])
            at = found.previous
        return [item for turn in reversed(turns) for item in turn]
