"""Files of images that ask for more work than their pixels do."""

import zlib
from io import BytesIO

import pytest
from bad_images import bad_images
from costly_images import chunk, chunked, commented, costly_images, scanned, segment
from pictured import content, picture
from PIL import Image

from dlm.errors import RequestError
from dlm.image_files import MOST_PARTS, MOST_SCANS, ImageFileError, essential
from dlm.images import ImageFile, Picture


def decoded(data):
    return Picture(ImageFile(data), "here").decoded(40_000_000).convert("RGB")


@pytest.mark.parametrize(("name", "data"), costly_images().items(), ids=[*costly_images()])
def test_a_costly_file_is_refused_before_a_decoder_reads_it(name, data, monkeypatch):
    def refuse(*args, **more):
        raise AssertionError("a decoder has read it")

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(
        RequestError, match=r"^here must be a (JPEG|PNG|GIF|baseline or progressive JPEG)\b.*, got "
    ):
        decoded(data)


@pytest.mark.parametrize(("name", "data"), bad_images().items(), ids=[*bad_images()])
def test_an_error_about_a_bad_file_has_no_words_of_a_library(name, data):
    with pytest.raises(RequestError) as raised:
        decoded(data)
    right = "must be PNG, JPEG, WebP or GIF", "cannot be decoded: its ", "pixels"
    assert any(words in str(raised.value) for words in right)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "CMYK", "LA"])
def test_a_reduced_file_has_the_same_picture(form, mode):
    image = picture(3, 37, 29).convert(mode)
    try:
        files = [content(image, form)]
    except (OSError, ValueError):
        pytest.skip(f"{form} has no {mode}")
    if form == "JPEG":
        files += [
            content(image, form, progressive=True),
            content(image, form, exif=b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0", comment="hello"),
        ]
    for data in files:
        assert decoded(data).tobytes() == Image.open(BytesIO(data)).convert("RGB").tobytes()


def test_as_many_scans_as_the_limit_has_are_decoded():
    scans = scanned(0).count(b"\xff\xda")
    components = 14  # of the scans that Pillow writes: three have all of three components
    assert scans == 10
    assert decoded(scanned(MOST_SCANS - components)).size == (20, 14)
    with pytest.raises(ImageFileError, match="of at most 64 scans of components, got more"):
        essential(scanned(MOST_SCANS - components + 1))


def test_scans_of_a_thumbnail_are_not_counted():
    thumbnail = b"Exif\0\0" + b"\xff\xda" * 10_000
    data = scanned(0, segment(0xE1, thumbnail))
    assert decoded(data).tobytes() == decoded(scanned(0)).tobytes()
    assert b"Exif" not in essential(data)[1]


def test_no_scan_appears_where_metadata_was():
    """A fill byte before a comment and the bytes after it would make a marker."""
    data = scanned(0)
    scan = data[data.rindex(b"\xff\xda") : -2]
    parted = data[:-2] + (b"\xff" + segment(0xFE, b"") + scan[1:]) * 200 + data[-2:]
    assert essential(parted)[1].count(b"\xff\xda") == data.count(b"\xff\xda")


def test_bytes_before_the_blocks_of_a_gif_are_skipped():
    data = commented(bytes(1000) + b"!\xfe\x05hello\0" + bytes(1000))
    assert decoded(data).tobytes() == decoded(content(picture(), "GIF")).tobytes()
    assert len(essential(data)[1]) <= len(content(picture(), "GIF"))


def test_data_after_the_end_of_a_picture_is_not_counted():
    """Phones append films to their pictures."""
    assert decoded(scanned(0) + b"\xff\xda" * 100_000).size == (20, 14)


BOMB = zlib.compress(bytes(50_000_000), 9)


@pytest.mark.parametrize(
    "chunks",
    [
        chunk(b"zTXt", b"a\0\0" + BOMB),
        chunk(b"iCCP", b"a\0\0" + BOMB),
        chunk(b"iTXt", b"a\0\1\0\0\0" + BOMB),
        chunk(b"acTL", b"\0\0\xff\xff\0\0\0\0"),
    ],
)
def test_parts_of_a_png_that_its_picture_does_not_need_are_not_read(chunks):
    data = chunked(chunks)
    assert decoded(data).tobytes() == picture().tobytes()
    assert essential(data)[1] == essential(content(picture()))[1]


def test_comments_of_a_gif_are_not_read_and_its_control_is_kept():
    plain = content(picture(), "GIF")
    control = b"!\xf9\x04\x01\0\0\x05\0"  # colour 5 is transparent
    data = commented(b"!\xfe\x05hello\0" * 3 + control)
    reduced = Image.open(BytesIO(essential(data)[1]))
    assert reduced.info["transparency"] == 5
    assert "comment" not in reduced.info
    assert Image.open(BytesIO(essential(plain)[1])).size == (20, 14)


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP"])
def test_the_first_frame_of_many_is_decoded(form):
    frames = [picture(seed) for seed in range(9)]
    data = content(frames[0], form, save_all=True, append_images=frames[1:], lossless=True)
    first = decoded(content(frames[0], form, lossless=True))
    assert decoded(data).tobytes() == first.tobytes()


def test_files_of_many_parts_within_the_limit_are_decoded():
    data = chunked(chunk(b"tEXt", b"a\0b") * (MOST_PARTS - 3))
    assert decoded(data).size == (20, 14)
    with pytest.raises(ImageFileError, match=f"a PNG of at most {MOST_PARTS} chunks, got more"):
        essential(chunked(chunk(b"tEXt", b"a\0b") * MOST_PARTS))
