"""Small files of images that ask for much work, by name, and parts to make more of them."""

import struct
import zlib

from pictured import content, picture

_SCAN, _END = b"\xff\xda", b"\xff\xd9"


def segment(marker: int, data: bytes) -> bytes:
    """A segment of a JPEG."""
    return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2) + data


def chunk(name: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    checked = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checked)


def scanned(times: int, before: bytes = b"") -> bytes:
    """A progressive JPEG whose last scan comes `times` times more, with `before` at its head."""
    data = content(picture(), "JPEG", progressive=True)
    last = data[data.rindex(_SCAN) : -len(_END)]
    return data[:2] + before + data[2 : -len(_END)] + last * times + _END


def hidden(times: int) -> bytes:
    """A JPEG with scans after a marker that decoders skip, where a length seems to cover them."""
    data, scans = scanned(0), scanned(times)[len(scanned(0)) - len(_END) : -len(_END)]
    return data[: -len(_END)] + segment(0x02, scans) + _END


def chunked(chunks: bytes) -> bytes:
    """A PNG with `chunks` before its data."""
    data = content(picture())
    return data[:33] + chunks + data[33:]


def commented(extensions: bytes) -> bytes:
    """A GIF with `extensions` before its picture."""
    data = content(picture(), "GIF")
    at = 13 + (3 << (data[10] & 7) + 1)  # after its colours
    return data[:at] + extensions + data[at:]


def costly_images() -> dict[str, bytes]:
    jpeg = content(picture(), "JPEG")
    return {
        "jpeg of many scans": scanned(20_000),
        "jpeg of many scans after fill bytes": scanned(200, b"\xff" * 70_000),
        "jpeg of many empty segments": jpeg[:2] + segment(0xE5, b"") * 100_000 + jpeg[2:],
        "jpeg of many restarts and scans": scanned(200, b"\xff\xd0\xff\x01" * 50_000),
        "jpeg of many scans after a reserved marker": hidden(200),
        "arithmetic jpeg": jpeg.replace(b"\xff\xc0", b"\xff\xc9"),
        "lossless jpeg": jpeg.replace(b"\xff\xc0", b"\xff\xc3"),
        "png of many chunks": chunked(chunk(b"tEXt", b"a\0b") * 50_000),
        "png of much empty data": chunked(chunk(b"IDAT", b"") * 50_000),
        "gif of many small comments": commented(b"!\xfe" + b"\x01a" * 500_000 + b"\0"),
        "gif of many extensions": commented(b"!\xfe\x01a\0" * 50_000),
        "gif of many extensions after other bytes": commented(b"\0" + b"!\xfe\x01a\0" * 50_000),
    }
