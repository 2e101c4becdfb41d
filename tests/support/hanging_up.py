"""A client that does not wait for its answer."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit


@contextmanager
def hanging_up(url: str, path: str, body: Any, **headers: str) -> Iterator[None]:
    """Send a request, and hang up at the end of the block."""
    connection = HTTPConnection(urlsplit(url).netloc)
    try:
        more = {"Content-Type": "application/json"} | headers
        connection.request("POST", path, json.dumps(body), more)
        yield
    finally:
        connection.close()
