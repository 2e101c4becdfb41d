"""Fetching of images from the hosts that an operator allows. By default no host is allowed."""

import urllib.error
import urllib.request
from collections.abc import Collection
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from dlm.errors import RequestError

_BYTES = 20 << 20  # of an image
_SECONDS = 10.0  # without an answer, or between two pieces of it
_PIECE = 1 << 16


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirect: it may lead to a host that is not allowed."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))


def fetch(url: str, place: str, hosts: Collection[str]) -> bytes:
    """Return the content at `url`, which stands at `place` in a body. Raises `RequestError` for a
    host that is none of `hosts`, and for an address without an image."""
    try:
        host = urlsplit(url).hostname
    except ValueError:
        host = None
    if host not in hosts:
        raise _refused(
            place, "is an address of a host that is not allowed: send the image as a data URL"
        )
    try:
        with _OPENER.open(url, timeout=_SECONDS) as answer:
            return _read(answer, place)
    except urllib.error.HTTPError as error:
        error.close()
        raise _refused(place, f"cannot be fetched: {error}") from None
    except (HTTPException, OSError, ValueError) as error:
        raise _refused(place, f"cannot be fetched: {error}") from error


def _read(answer: Any, place: str) -> bytes:
    content = bytearray()
    while piece := answer.read(_PIECE):
        content += piece
        if len(content) > _BYTES:
            raise _refused(place, f"has more than {_BYTES} bytes")
    return bytes(content)


def _refused(place: str, problem: str) -> RequestError:
    return RequestError(f"{place} {problem}", field=place.partition("[")[0])
