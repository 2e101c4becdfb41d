"""Names of the parts of a form."""

import pytest

from dlm import RequestError
from dlm.serving.multipart import form_parts

KIND = 'multipart/form-data; boundary="x"'


def parts(*heads):
    body = b"".join(b"--x\r\n" + head + b"\r\n\r\n3\r\n" for head in heads)
    return {name: part.filename for name, part in form_parts(KIND, body + b"--x--\r\n").items()}


@pytest.mark.parametrize(
    ("disposition", "names"),
    [
        (b'name="a"', ("a", None)),
        (b"name=a", ("a", None)),
        (b'filename="b"; name="a"', ("a", "b")),
        (b'name="a";filename=b', ("a", "b")),
        (b'name="a"; filename="b; name=\\"c\\""', ("a", 'b; name="c"')),
        (b'name="a"; filename="C:\\rows.jsonl"', ("a", "C:\\rows.jsonl")),
        (b"name=\"a\"; filename*=utf-8''%c3%a4%20b", ("a", "ä b")),
        (b'name="a"; filename="b"; filename*=UTF-8\'en\'c', ("a", "c")),
        ('name="ä"; filename="ö"'.encode(), ("ä", "ö")),
    ],
)
def test_names_are_those_of_the_disposition(disposition, names):
    name, filename = names
    assert parts(b"Content-Disposition: form-data; " + disposition) == {name: filename}


def test_other_headers_have_no_names():
    other = b'Content-Type: text/plain; name="other"; filename="other"'
    disposition = b'content-disposition:form-data; name="a"'
    assert parts(other + b"\r\n" + disposition) == {"a": None}
    for head in (other, b'X-Content-Disposition: form-data; name="a"'):
        with pytest.raises(RequestError, match="must have a name"):
            parts(head)


def test_a_name_in_another_encoding_is_refused():
    with pytest.raises(RequestError, match=r"filename\* of a form must be UTF-8, got b\"latin-1"):
        parts(b"Content-Disposition: form-data; name=\"a\"; filename*=latin-1''b")
