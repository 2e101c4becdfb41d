"""Images in the bodies of clients: data URLs, and addresses of hosts that the operator allows."""

import base64
import binascii
import re
from typing import Annotated, Any, Literal

from dlm.errors import RequestError
from dlm.images import ImageFile, RemoteImage
from dlm.openai.body import REQUIRED, JsonModel, Takes, shown

_DATA = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(;[\w.=+-]+)*;base64,", re.ASCII)
_LONGEST = 200  # characters of a data URL before its data
_RIGHT = "a data URL of an image in base64, or an https address"


class ImageAddress(JsonModel):
    url: Annotated[str, Takes(_RIGHT)] = REQUIRED
    detail: Any = None  # images are always read in the same detail


class ChatImage(JsonModel):
    """Image as chat completions have it."""

    type: Literal["image_url"] = REQUIRED
    image_url: Annotated[str | ImageAddress, Takes("a URL, or an object with a url")] = REQUIRED

    def part(self, place: str) -> dict[str, Any]:
        if isinstance(self.image_url, str):
            return image_part(self.image_url, f"{place}.image_url")
        return image_part(self.image_url.url, f"{place}.image_url.url")


class InputImage(JsonModel):
    """Image as Responses have it."""

    type: Literal["input_image"] = REQUIRED
    image_url: Annotated[str, Takes(_RIGHT)] | None = None
    file_id: str | None = None
    detail: Any = None

    def part(self, place: str) -> dict[str, Any]:
        if self.image_url is None:
            found = (
                "missing" if self.file_id is None else f"missing, and file_id {self.file_id:.40}"
            )
            raise RequestError(
                f"{place}.image_url is {found}: it takes {_RIGHT}; no files are stored here",
                field=place.partition("[")[0],
            )
        return image_part(self.image_url, f"{place}.image_url")


def image_part(url: str, place: str) -> dict[str, Any]:
    """Return the part of a message for an image at `url`, which stands at `place` in a body. Raises
    `RequestError`."""
    if url.startswith(("https://", "http://")):
        return {"type": "image", "image": RemoteImage(url, place)}
    head = _DATA.match(url, 0, _LONGEST)
    kind = head[1] if head else None
    if head is None or (kind is not None and not kind.lower().startswith("image/")):
        raise _refused(place, url, _RIGHT)
    return {"type": "image", "image": image_file(url[head.end() :], place)}


def image_file(data: str, place: str) -> ImageFile:
    """Return the file whose content in base64 is `data`. Raises `RequestError`."""
    try:
        return ImageFile(base64.b64decode("".join(data.split()), validate=True), place)
    except (binascii.Error, ValueError) as error:
        raise RequestError(
            f"{place} is no base64: {error}", field=place.partition("[")[0]
        ) from error


def _refused(place: str, found: str, right: str) -> RequestError:
    return RequestError(
        f"{place} is {shown(found)}: it takes {right}", field=place.partition("[")[0]
    )
