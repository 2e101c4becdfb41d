"""Formats of texts: against the standard library's own idea of them."""

import datetime
import ipaddress
import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlm.grammar.schema.formats import FORMATS, integer_bounds

MATCHES = {name: re.compile(pattern).fullmatch for name, pattern in FORMATS.items()}


@given(st.dates())
def test_every_date_fits(date):
    assert MATCHES["date"](date.isoformat())


@pytest.mark.parametrize("year", [1, 4, 100, 400, 1900, 2000, 2023, 2024])
def test_only_days_that_were_fit(year):
    for month in range(14):
        for day in range(33):
            text = f"{year:04}-{month:02}-{day:02}"
            try:
                datetime.date.fromisoformat(text)
            except ValueError:
                assert not MATCHES["date"](text)
            else:
                assert MATCHES["date"](text)


@given(st.datetimes(timezones=st.just(datetime.UTC)))
def test_every_moment_fits(moment):
    text = moment.isoformat()
    assert MATCHES["date-time"](text)
    assert MATCHES["date-time"](text.replace("+00:00", "Z"))
    assert MATCHES["time"](text.split("T")[1])


@given(st.uuids(), st.ip_addresses(v=4), st.ip_addresses(v=6))
def test_identifiers_and_addresses_fit(identifier, v4, v6):
    assert MATCHES["uuid"](str(identifier))
    assert MATCHES["ipv4"](str(v4))
    assert MATCHES["ipv6"](str(v6))


@given(st.lists(st.sampled_from(["", "0", "ffff", "12345", "g", "::"]), max_size=9).map(":".join))
def test_only_addresses_fit(text):
    if MATCHES["ipv6"](text):
        assert ipaddress.IPv6Address(text)


@pytest.mark.parametrize(
    ("name", "text", "fits"),
    [
        ("time", "24:00:00Z", False),
        ("date-time", "2024-01-01T10:00:00", False),
        ("duration", "P1Y2M3DT4H5M6S", True),
        ("duration", "P2W", True),
        ("duration", "P", False),
        ("duration", "PT", False),
        ("email", "ada.lovelace+x@example.org", True),
        ("email", ".ada@example.org", False),
        ("email", "ada@-example.org", False),
        ("hostname", "a-b.example", True),
        ("hostname", "-a", False),
        ("ipv4", "256.1.1.1", False),
        ("ipv4", "01.1.1.1", False),
        ("uri", "https://a.example/x?y=%20#z", True),
        ("uri", "https://a b", False),
        ("uri", "no-scheme", False),
        ("uuid", str(uuid.UUID(int=5))[:-1], False),
    ],
)
def test_a_format_tells_what_it_means(name, text, fits):
    assert bool(MATCHES[name](text)) == fits


def test_the_formats_of_integers_bound_them():
    assert integer_bounds("int32") == (-(2**31), 2**31 - 1)
    assert integer_bounds("uint8") == (0, 255)
    assert integer_bounds("int64") == (-(2**63) + 1, 2**63 - 1)
    assert integer_bounds("date") is None
