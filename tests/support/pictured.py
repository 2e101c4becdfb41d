"""Pictures, and a checkpoint that reads them."""

import base64
from io import BytesIO
from typing import Any

from measure.seeing import MARK, write
from PIL import Image

__all__ = ["MARK", "content", "data_url", "encoded", "picture", "write"]


def picture(seed: int = 0, width: int = 20, height: int = 14) -> Image.Image:
    pixels = bytes((seed * 31 + 7 * i * i) % 256 for i in range(3 * width * height))
    return Image.frombytes("RGB", (width, height), pixels)


def content(image: Image.Image, form: str = "PNG", **how: Any) -> bytes:
    """The bytes of a file."""
    file = BytesIO()
    image.save(file, form, **how)
    return file.getvalue()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{encoded(data)}"
