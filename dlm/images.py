"""Images in messages: parts of content, and the pictures that they hold.

A part is `{"type": "image", "image": ...}`, with a PIL image, the bytes of a file, an `ImageFile`
or a `RemoteImage`. It stands in a message of the user or in the result of a tool. Remote images are
fetched from the hosts that an operator allows, by default none. Nothing is decoded before the size
in a file's header is known, and the work that the file asks for (`dlm.image_files`). Pillow, of the
extra `dlm[vision]`, is imported when the first image is decoded.
"""

import hashlib
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dlm.errors import RequestError
from dlm.image_files import NAMES, ImageFileError, essential

if TYPE_CHECKING:
    from PIL.Image import Image

_BYTES = 20 << 20  # of a remote image
_SECONDS = 10.0  # without an answer of its host, or between two pieces of it
_PIECE = 1 << 16  # bytes read at a time


@dataclass(frozen=True, slots=True)
class ImageFile:
    """Bytes of a PNG, JPEG, WebP or GIF file, of which the first frame is read. `place` is where it
    stands in a client's body, for errors."""

    data: bytes
    place: str = ""

    def __repr__(self) -> str:
        return f"ImageFile({len(self.data)} bytes)"


@dataclass(frozen=True, slots=True)
class RemoteImage:
    """Address of an image file, which is fetched if the policy allows its host."""

    url: str
    place: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Image of a request that is not decoded yet."""

    source: "ImageFile | Image"
    place: str  # in the request or in the client's body

    @property
    def digest(self) -> bytes:
        """Hash of the content: equal ones are the same image."""
        source, hashed = self.source, hashlib.sha256()
        if isinstance(source, ImageFile):
            hashed.update(source.data)
        else:
            hashed.update(f"{source.mode} {source.size} ".encode())
            hashed.update(source.convert("RGBA").tobytes())
        return hashed.digest()

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, of which nothing is decoded. Raises `RequestError` for a file
        that cannot be read."""
        return self._opened().size

    def decoded(self, most_pixels: int) -> "Image":
        """Return the image. Raises `RequestError` for a file that cannot be read, or an image of
        more than `most_pixels`, which is not decoded."""
        image = self._opened()
        width, height = image.size
        if width * height > most_pixels:
            raise image_error(
                self.place, f"must have at most {most_pixels} pixels, got {width} by {height}"
            )
        try:
            image.load()
        except Exception as error:  # formats raise their own
            raise image_error(self.place, _damaged(image.format)) from error
        return image

    def _opened(self) -> "Image":
        if not isinstance(self.source, ImageFile):
            return self.source
        try:
            from PIL import Image
        except ImportError as error:
            raise image_error(
                self.place, "cannot be read: Pillow is missing (pip install 'dlm[vision]')"
            ) from error
        try:
            form, data = essential(self.source.data)
        except ImageFileError as error:
            raise image_error(self.place, str(error)) from error
        try:
            return Image.open(BytesIO(data), formats=(form,))
        except Image.DecompressionBombError as error:
            raise image_error(self.place, "has too many pixels to be decoded") from error
        except Exception as error:  # formats raise their own
            raise image_error(self.place, _damaged(form)) from error


def _damaged(form: str | None) -> str:
    """Return the problem of a file of this format whose picture cannot be decoded."""
    return f"cannot be decoded: its {form or 'image'} data is damaged or incomplete"


def image_error(place: str, problem: str) -> RequestError:
    """Return the error of the image at `place` in a request or in a client's body."""
    return RequestError(f"{place} {problem}", field=place.partition("[")[0])


def is_image(part: Any) -> bool:
    """Whether a part of a message's content is an image."""
    return isinstance(part, Mapping) and part.get("type") == "image"


def check_image(name: str, part: Mapping[str, Any]) -> None:
    """Raise `RequestError` for a part without an image; `name` is its place in the request."""
    image = part.get("image")
    if not isinstance(image, bytes | ImageFile | RemoteImage) and not _is_pil(image):
        raise RequestError(
            f"{name}.image must be a PIL image, or the bytes of a {NAMES} file, got a "
            f"{type(image).__name__}"
        )


def placed_images(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, Any]]:
    """Return the images of a conversation, in their order, each after its place in the request or
    in the client's body."""
    placed = []
    for i, message in enumerate(messages):
        for j, part in enumerate(_parts(message)):
            if is_image(part):
                image, place = part["image"], f"messages[{i}].content[{j}].image"
                if isinstance(image, ImageFile | RemoteImage) and image.place:
                    place = image.place
                placed.append((place, image))
    return placed


def fetched_images(
    messages: Sequence[Mapping[str, Any]], hosts: Collection[str]
) -> list[Mapping[str, Any]]:
    """Return a conversation in which files stand for addresses of images. Raises `RequestError` for
    an address whose host is none of `hosts`, and for one without an image."""

    def file_of(part: Any) -> Any:
        match part:
            case {"type": "image", "image": RemoteImage(url=url, place=place)}:
                return {**part, "image": ImageFile(_fetch(url, place, hosts), place)}
        return part

    return [
        {**message, "content": [*map(file_of, message["content"])]}
        if isinstance(message["content"], list | tuple)
        else message
        for message in messages
    ]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirect: it may lead to a host that is not allowed."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))


def _fetch(url: str, place: str, hosts: Collection[str]) -> bytes:
    """Return the content at `url`, which stands at `place` in a body. Raises `RequestError` for a
    host that is none of `hosts`, and for an address without an image."""
    try:
        host = urlsplit(url).hostname
    except ValueError:
        host = None
    if host not in hosts:
        raise image_error(
            place, "is an address of a host that is not allowed: send the image as a data URL"
        )
    try:
        with _OPENER.open(url, timeout=_SECONDS) as answer:
            return _read(answer, place)
    except urllib.error.HTTPError as error:
        error.close()
        raise image_error(
            place, f"cannot be fetched: its host answered with status {error.code}"
        ) from None
    except (HTTPException, OSError, ValueError) as error:
        raise image_error(
            place, "cannot be fetched: its host cannot be reached, or does not answer in time"
        ) from error


def _read(answer: Any, place: str) -> bytes:
    content = bytearray()
    while piece := answer.read(_PIECE):
        content += piece
        if len(content) > _BYTES:
            raise image_error(place, f"has more than {_BYTES} bytes")
    return bytes(content)


def pictures(messages: Sequence[Mapping[str, Any]]) -> list[Picture]:
    """Return the images of a conversation, in their order; none is an address."""
    return [
        Picture(ImageFile(image) if isinstance(image, bytes) else image, place)
        for place, image in placed_images(messages)
    ]


def without_pictures(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message in which images are marked, as chat templates take them. Texts of a tool's
    result end in a new line if another text follows: a template may put its images after all its
    texts."""
    parts = _parts(message)
    if not any(map(is_image, parts)):
        return message
    marked = [{"type": "image"} if is_image(part) else part for part in parts]
    if message["role"] == "tool":
        texts = [i for i, part in enumerate(marked) if not is_image(part)]
        for i in texts[:-1]:
            marked[i] = {**marked[i], "text": f"{marked[i]['text']}\n"}
    return {**message, "content": marked}


def images_after_results(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return a conversation whose images of tools' results stand after these.

    They begin the user's message that follows the results, or a message of the user of their own if
    none follows. A text before the images of a result names it. The order of all images stays.
    """
    turns, moved, number = list[Mapping[str, Any]](), list[Any](), 0
    for message in messages:
        if message["role"] == "tool":
            number += 1
            parts, name = _parts(message), message.get("name")
            if images := [part for part in parts if is_image(part)]:
                named = f"Images in result {number}{f' ({name})' if name else ''}:"
                moved += [{"type": "text", "text": named}, *images]
                texts = (part["text"] for part in parts if not is_image(part))
                message = {**message, "content": "\n".join(texts)}
        elif message["role"] != "system":  # one among results does not end them
            if moved and message["role"] == "user":
                message = {**message, "content": [*moved, *_parts(message)]}
            elif moved:
                turns.append({"role": "user", "content": moved})
            moved, number = [], 0
        turns.append(message)
    return [*turns, {"role": "user", "content": moved}] if moved else turns


def _parts(message: Mapping[str, Any]) -> Sequence[Any]:
    """Return the parts of a message's content; a text is one."""
    content = message["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list | tuple) else ()


def _is_pil(value: Any) -> bool:
    """Whether a value is a PIL image, without importing Pillow."""
    return any(
        kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(value).__mro__
    )
