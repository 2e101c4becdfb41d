"""Files of images, reduced to what their first picture needs, before any of it is decoded.

A small file may ask for hours of work: a JPEG whose picture is refined by thousands of scans, or a
PNG or a GIF of millions of parts. `essential` counts such parts and refuses too many. It also drops
the parts that the first picture does not need, such as profiles, texts, comments and further
frames, so that no decoder reads them. Afterwards the work grows with the numbers of pixels and of
bytes alone. This module decodes nothing, and needs no Pillow.
"""

import re
import struct
from collections.abc import Callable

NAMES = "PNG, JPEG, WebP or GIF"
MOST_SCANS = 64  # of a JPEG, each of one component; encoders write 3 to 30
MOST_PARTS = 8192  # segments of a JPEG, chunks of a PNG; blocks of a GIF before its picture

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_GIF = b"GIF87a", b"GIF89a"
_PNG_CHUNKS = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"}
# A marker of a JPEG; 00 after FF is data, and D0 to D7 restart a decoder within a scan.
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_GIF_BLOCK = re.compile(rb"[!,;]")  # an extension, a picture or the end; decoders skip other bytes
_MARKER_PIECE = 1 << 16  # bytes searched at a time: no other thread runs during a search
_ALONE = {*range(0x01, 0xC0), 0xD8}  # markers without a segment; decoders skip the reserved ones
_SCAN, _END = 0xDA, 0xD9
_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended and progressive, all by Huffman's codes
_OTHER_FRAMES = {*range(0xC3, 0xD0)} - {0xC4, 0xC8, 0xCC}  # lossless, hierarchical, arithmetic
_METADATA = {*range(0xE1, 0xF0), 0xFE} - {0xEE}  # all but JFIF's and Adobe's, which name colours


class ImageFileError(ValueError):
    """File that is not decoded; the text says why, as in "is {text}"."""


def essential(data: bytes) -> tuple[str, bytes]:
    """Return the format of a file, by Pillow's name, and a file with the same first picture.

    Raises `ImageFileError` for a file of another format, or of too many parts.
    """
    for name, begins, reduced in _FORMATS:
        if begins(data):
            return name, reduced(data)
    got = "an empty file" if not data else "another format, or damaged data"
    raise ImageFileError(f"must be {NAMES}, got {got}")


def _jpeg(data: bytes) -> bytes:
    """Return a JPEG without its metadata, all of whose scans have been counted."""
    parts, begin, segments, scans = list[bytes](), 0, 0, 0
    last = 2  # the end of the segment before
    while (at := _next_marker(data, last)) is not None:
        marker, segments = data[at + 1], segments + 1
        if segments > MOST_PARTS:
            raise ImageFileError(f"must be a JPEG of at most {MOST_PARTS} segments, got more")
        if marker == _END:
            break
        if marker in _OTHER_FRAMES:
            raise ImageFileError(
                "must be a baseline or progressive JPEG, got an arithmetic, a lossless or a "
                "hierarchical one"
            )
        if marker in _ALONE:
            last = at + 2
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4])
        if marker == _SCAN:
            scans += max(1, int.from_bytes(data[at + 4 : at + 5]))
            if scans > MOST_SCANS:
                raise ImageFileError(
                    f"must be a JPEG of at most {MOST_SCANS} scans of components, got more"
                )
        elif marker in _METADATA:
            # Fill bytes go too: they would make a marker of what follows.
            parts += data[begin:last], data[last:at].rstrip(b"\xff")
            begin = min(end, len(data))
        last = max(end, at + 2)
    return b"".join((*parts, data[begin:]))


def _next_marker(data: bytes, at: int) -> int | None:
    """Return where the next marker of a JPEG begins; None if there is none."""
    while at < len(data):
        if marker := _MARKER.search(data, at, at + _MARKER_PIECE + 1):
            return marker.start()
        at += _MARKER_PIECE
    return None


def _png(data: bytes) -> bytes:
    """Return a PNG of the chunks that its picture needs."""
    parts, at, chunks = [data[: len(_PNG)]], len(_PNG), 0
    while at + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        end, chunks = at + 12 + length, chunks + 1
        if chunks > MOST_PARTS:
            raise ImageFileError(f"must be a PNG of at most {MOST_PARTS} chunks, got more")
        if name in _PNG_CHUNKS:
            parts.append(data[at:end])
        if name == b"IEND":
            break
        at = end
    return b"".join(parts)


def _gif(data: bytes) -> bytes:
    """Return a GIF without the extensions before its first picture, but for the last one that
    controls it."""
    flags = int.from_bytes(data[10:11])
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    head, control, blocks = data[:at], b"", 0
    while (block := _GIF_BLOCK.search(data, at)) and block.group() == b"!":
        begin = block.start()
        at = begin + 2
        while size := int.from_bytes(data[at : at + 1]):
            at, blocks = at + 1 + size, blocks + 1
            if blocks > MOST_PARTS:
                raise ImageFileError(
                    f"must be a GIF of at most {MOST_PARTS} blocks before its picture, got more"
                )
        at += 1
        if data[begin + 1 : begin + 2] == b"\xf9":
            control = data[begin:at]
    return head + control + data[block.start() if block else len(data) :]


def _webp(data: bytes) -> bytes:
    """Return a WebP as it is: its decoder skips what the first picture does not need."""
    return data


_FORMATS: tuple[tuple[str, Callable[[bytes], bool], Callable[[bytes], bytes]], ...] = (
    ("PNG", lambda data: data.startswith(_PNG), _png),
    ("JPEG", lambda data: data.startswith(_JPEG), _jpeg),
    ("GIF", lambda data: data.startswith(_GIF), _gif),
    ("WEBP", lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP", _webp),
)
