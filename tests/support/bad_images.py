"""Files that are no image that a server should decode, by name."""

import struct
import zlib
from functools import cache
from io import BytesIO

from pictured import content, picture


def _png(width: int, height: int, data: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", data), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part))
        for name, part in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def _changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


@cache
def bad_images() -> dict[str, bytes]:
    png, jpeg = content(picture()), content(picture(), "JPEG")
    webp, gif = content(picture(), "WEBP"), content(picture(), "GIF")
    zeros = zlib.compress(bytes(50_000_000), 9)
    bmp = BytesIO()
    picture().save(bmp, "BMP")
    tiff = BytesIO()
    picture().save(tiff, "TIFF")
    return {
        "empty": b"",
        "text": b"not an image",
        "html": b"<html><body>404</body></html>",
        "svg": b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
        "pdf": b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n",
        "zeros": bytes(5000),
        "bmp": bmp.getvalue(),
        "tiff": tiff.getvalue(),
        "png header alone": png[:33],
        "png cut": png[: len(png) // 2],
        "png without pixels": _png(20, 14, b""),
        "png of no width": _png(0, 14, zlib.compress(b"")),
        "png with a wrong sum": _changed(png, 29, b"\x00\x00\x00\x00"),
        "png bomb": _png(60_000, 60_000, zeros),
        "png as wide as can be": _png((1 << 31) - 1, 1, zlib.compress(b"")),
        "jpeg cut": jpeg[: len(jpeg) // 2],
        "jpeg bomb": _changed(jpeg, jpeg.index(b"\xff\xc0") + 5, b"\xff\xff\xff\xff"),
        "jpeg beginning": b"\xff\xd8\xff\xe0",
        "webp cut": webp[: len(webp) // 2],
        "webp beginning": b"RIFF\x00\x00\x00\x00WEBPVP8 ",
        "gif cut": gif[:40],
        "gif bomb": _changed(gif, 6, b"\xff\xff\xff\xff"),
    }
