"""Files of the server's page, and the policy under which browsers show them.

The page loads only what lies beside it, sends requests only to the server that it is from, and runs
no code that stands in a document. It shows pictures only from `data:` addresses, which it makes of
files that a person has chosen.
"""

from pathlib import Path

from fastapi.responses import Response
from starlette.exceptions import HTTPException

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_FILES = {
    path.name: (path.read_bytes(), _TYPES[path.suffix])
    for path in sorted(Path(__file__).with_name("page").iterdir())
    if path.suffix in _TYPES
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a newer server has newer files
}


def page_file(name: str) -> Response:
    """Return a file of the page. Raises a 404 for another name."""
    if name not in _FILES:
        raise HTTPException(404)
    content, kind = _FILES[name]
    return Response(content, media_type=f"{kind}; charset=utf-8", headers=_HEADERS)
