"""Formats of strings, compared with the standard library and case by case."""

import datetime
import ipaddress
import json
import random
import re
from fractions import Fraction
from functools import partial
from uuid import UUID

import pytest
from exhaustive import share
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    UUID1,
    UUID3,
    UUID4,
    UUID5,
    Base64Bytes,
    Base64UrlBytes,
    BaseModel,
    IPvAnyAddress,
    IPvAnyInterface,
    IPvAnyNetwork,
    ValidationError,
)
from readers import misread

from dlm.grammar.regex import Automaton, read_regex
from dlm.grammar.schema import format_texts


def fits(name: str, text: str) -> bool:
    automaton, low, high = format_texts(name)
    return automaton.accepts(text) and low <= len(text) <= (high or len(text))


@given(st.dates())
def test_every_date_fits(date):
    assert fits("date", date.isoformat())


@pytest.mark.parametrize("year", [1, 4, 100, 400, 1900, 2000, 2021, 2023, 2024])
def test_days_that_do_not_exist_are_no_dates(year):
    for month in range(14):
        for day in range(33):
            text = f"{year:04}-{month:02}-{day:02}"
            try:
                datetime.date.fromisoformat(text)
            except ValueError:
                assert not fits("date", text)
            else:
                assert fits("date", text)


@given(st.datetimes(timezones=st.just(datetime.UTC)))
def test_every_datetime_fits(moment):
    text = moment.isoformat()
    assert fits("date-time", text)
    assert fits("date-time", text.replace("+00:00", "Z"))
    assert fits("time", text.split("T")[1])


@given(st.integers(0, 1439), st.integers(-47, 47))
def test_a_leap_second_is_the_last_one_of_a_day_in_utc(local, halves):
    sign, offset = "-" if halves < 0 else "+", abs(halves) * 30
    text = f"{local // 60:02}:{local % 60:02}:60{sign}{offset // 60:02}:{offset % 60:02}"
    assert fits("time", text) == ((local - halves * 30) % 1440 == 1439)
    assert fits("time", text.replace(":60", ":59"))


@given(st.uuids(), st.ip_addresses(v=4), st.ip_addresses(v=6))
def test_identifiers_and_addresses_fit(identifier, v4, v6):
    assert fits("uuid", str(identifier))
    assert fits("ipv4", str(v4))
    assert fits("ipv6", str(v6))
    assert fits("ipv6", v6.exploded)
    assert fits("uri", f"http://[{v6}]:80/")
    assert fits("email", f"a@[IPv6:{v6}]")


@given(
    st.lists(st.sampled_from(["", "0", "ffff", "12345", "g", "1.2.3.4"]), max_size=9).map(":".join)
)
def test_addresses_are_those_of_the_standard_library(text):
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        assert not fits("ipv6", text)
    else:
        assert fits("ipv6", text)


UUID_OF = "2eb8aa08-aa98-{}1ea-{}4aa-73b441d16380"


@pytest.mark.parametrize(
    ("name", "accepted", "refused"),
    [
        ("date", ["0400-02-29"], ["2021-02-29", "0100-02-29", "0000-01-01", "1963-06-1\u09ea"]),
        ("time", ["23:59:60Z", "08:30:06Z", "01:29:60+01:30", "08:30:06.123456789Z"],
         ["24:00:00Z", "22:59:60Z", "12:00:00", "08:30:06z", "08:30:06.1234567891Z"]),
        ("date-time", ["1963-06-19T08:30:06.283185Z", "1998-12-31T15:59:60.123-08:00"],
         ["2024-01-01T10:00:00", "2013-350T01:01:01Z", "1963-06-19t08:30:06Z",
          "1963-06-19T08:30:06z", "1963-06-19 08:30:06Z", "1963-06-19T08:30:06.1111111111Z",
          "1998-12-31T23:58:60Z", "2024-01-01T10:00:00Z\n"]),
        ("duration", ["P1Y2M3DT4H5M6S", "P2W", "PT0S", "P" + "9" * 9 + "D"],
         ["P" + "9" * 10 + "D", "PT" + "0" * 10 + "S", "P", "PT", "P1Y2D", "P1YT", "PT0.5S",
          "P1Y2W"]),
        ("email", ["ada.l+x@example.org", '"a b\\""@b', "a@[127.0.0.1]", "~@b.c"],
         [".a@b", "a@-b", "a@[127.0.0.300]", "a..b@c", "a@b@c", "a b@c", "not an email", "é@b"]),
        ("idn-email", ["실례@실례.테스트", "a@b"], ["2962", "user\uff20example.com", "a@b..c"]),
        ("hostname", ["a-b.example", "a--b", "a" * 63, "a." * 126 + "a"],
         ["-a", "a-", "a" * 64, "a.", "a_b", "xn--X", "a." * 126 + "aa", ""]),
        ("ipv4", ["255.255.255.255"], ["256.1.1.1", "01.1.1.1", "1.1.1"]),
        ("ipv6", ["::ffff:1.2.3.4"], ["::ffff:1.2.3.04", "fe80::1%eth0", "1::2::3"]),
        ("uri",
         ["https://a.example/x?y=%20#z", "urn:a:b", "http://-.~_!$&'()*+,;=:%40:80%2f::::::@a"],
         ["https://a b", "no-scheme", "http://a/%6G", "//a", "http:/[::1]", "http://a:b/c",
          "1a:b"]),
        ("uri-reference", ["//a/b", "", "#x", "./a:b"], ["\\a", "#a#b", "a b"]),
        ("iri", ["http://ƒøø.ßår/?∂éœ=πîx#πîüx"], ["/abc", "http://a\\b", "a:\ufdd0"]),
        ("iri-reference", ["âππ", "http://ƒøø"], ["#ƒräg\\mênt", "\\\\WIN"]),
        ("uri-template", ["a{?b:3,c*}{+d.e}"], ["a{b", "{}", "{a,}", "{v:0}", "a b", "}"]),
        ("uuid", ["2EB8AA08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08aa9811eab4aa73b441d16380"]),
        ("json-pointer", ["", "/a~1b/", "/\n"], ["a", "/~2", "/~"]),
        ("relative-json-pointer", ["0#", "1/a//"], ["01#", "-1/a", "/a", "0##"]),
        ("uuid4", [UUID_OF.format("4", "b")], [UUID_OF.format("1", "b"), UUID_OF.format("4", "c")]),
        ("uuid7", [UUID_OF.format("7", "8")], [UUID_OF.format("6", "8")]),
        ("ipvanyaddress", ["1.2.3.4", "::1"], ["1.2.3", "1.2.3.4/8", ""]),
        ("ipv4network", ["10.0.0.0/8", "0.0.0.0/0", "1.2.3.4", "1.2.3.4/32", "10.128.0.0/9"],
         ["10.0.0.1/8", "10.0.0.0/33", "10.64.0.0/9", "10.0.0.0/08"]),
        ("ipv6network", ["2001:db8::/32", "::/0", "::1", "fe80::/12", "1:2:3:4:5:6:7:0/112"],
         ["2001:db8::1/32", "fe8f::/12", "::/129"]),
        ("ipvanynetwork", ["10.0.0.0/8", "2001:db8::/32"], ["10.0.0.1/8"]),
        ("ipv4interface", ["10.0.0.1/8", "10.0.0.1"], ["10.0.0.1/33"]),
        ("ipvanyinterface", ["::1/64", "10.0.0.1/8"], ["::1/129"]),
        ("base64", ["", "aGVsbG8=", "/+==".replace("+", "w")], ["a", "ab=", "a-b_", "aGVsbG8"]),
        ("base64url", ["_-8="], ["/+8=", "_-8"]),
        ("json-string", ['{"a": [1, {"b": null}]}', " 1 ", '"\\u00e9"'], ["{", "{a: 1}", "'a'"]),
        ("regex", ["^(a|b)*$", r"[^a-f\d_]{1,3}?x+", r"(?:(?!b)a)\.", ""],
         ["(", "a)", "[a", "*a", "a{3,2}", "[z-a]", "\\", "^(abc]"]),
        ("name-email", ["Ada L <a@b.c>"], ["Ada <a>", "Ada"]),
        ("multi-host-uri", ["postgresql://u:p@a:1,b.c:2/d?e=f", "mongodb://a"], ["a", "//a"]),
        ("fraction", ["1/3", "-2"], ["1/0", "1/", "a"]),
        ("zoneinfo", ["UTC", "Europe/Berlin", "America/Argentina/Ushuaia"], ["here", "Europe/"]),
    ],
)  # fmt: skip
def test_a_format_accepts_its_texts_and_no_others(name, accepted, refused):
    assert misread(partial(fits, name), accepted, refused) == []


def test_a_format_can_be_intersected_with_lengths():
    email, *_ = format_texts("email")
    short = email.intersection(Automaton.lengths(0, 6))
    assert short.accepts("a@b.cd")
    assert not short.accepts("a@b.cde")
    assert not short.accepts("abcdef")


def test_unknown_formats_are_not_enforced():
    assert format_texts("idn-hostname") is None
    assert format_texts("colour") is None
    assert format_texts("password") is None


class Everything(BaseModel):
    """A field of each type that pydantic writes with a format that is enforced."""

    uuid: UUID
    uuid1: UUID1
    uuid3: UUID3
    uuid4: UUID4
    uuid5: UUID5
    address: IPvAnyAddress
    network: IPvAnyNetwork
    interface: IPvAnyInterface
    v4_network: ipaddress.IPv4Network
    v6_network: ipaddress.IPv6Network
    v4_interface: ipaddress.IPv4Interface
    v6_interface: ipaddress.IPv6Interface
    base64: Base64Bytes
    base64url: Base64UrlBytes
    pattern: re.Pattern[str]
    fraction: Fraction
    when: datetime.datetime
    day: datetime.date
    clock: datetime.time
    length: datetime.timedelta


FORMATS = {
    name: part.get("format", "fraction")
    for name, part in Everything.model_json_schema()["properties"].items()
}


def test_every_format_of_pydantic_is_enforced():
    assert [name for name in FORMATS.values() if format_texts(name) is None] == []
    assert [name for name in FORMATS.values() if fits(name, "no such thing")] == ["regex"]


@pytest.mark.parametrize("field", FORMATS)
def test_texts_of_a_format_of_pydantic_are_values_of_its_type(field: str):
    automaton, *_ = format_texts(FORMATS[field])
    choose, good = random.Random(field), 0
    for _ in range(300):
        if (text := walked(automaton, choose)) is None:
            continue
        if field in ("when", "clock") and ":60" in text:  # Python has no leap seconds
            continue
        if field == "length" and len(text) > 12:  # nor spans of a million years
            continue
        assert problem_of(field, text) is None
        good += 1
    assert good > 20


def problem_of(field: str, text: str) -> str | None:
    try:
        Everything.__pydantic_validator__.validate_assignment(
            Everything.model_construct(), field, text
        )
    except ValidationError as error:
        return f"{text!r}: {error}"
    return None


def walked(automaton: Automaton, choose: random.Random, most: int = 60) -> str | None:
    """Return a random text that the automaton accepts; None if it became too long."""
    text, state = "", 0
    while len(text) < most:
        if state in automaton.final and (not automaton.edges[state] or choose.random() < 0.2):
            return text
        low, high, state = choose.choice(automaton.edges[state])
        text += chr(choose.randint(low, min(high, low + 90)))
    return None


@pytest.mark.parametrize("name", ["regex", "json-string"])
def test_texts_of_a_notation_within_strings_are_read_by_its_parser(name: str):
    (automaton, *_), choose = format_texts(name), random.Random(name)
    drawn = share(2000)
    texts = {walked(automaton, choose, 200) for _ in range(drawn)} - {None}
    assert len(texts) > drawn // 10
    for text in texts:
        if name == "regex":
            re.compile(text)
            read_regex(text)
        else:
            json.loads(text)
