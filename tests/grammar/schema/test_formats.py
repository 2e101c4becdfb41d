"""Formats of texts: against the standard library's own idea of them, and case by case."""

import datetime
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.schema.formats import format_automaton, format_length


def fits(name: str, text: str) -> bool:
    automaton = format_automaton(name)
    assert automaton is not None
    return automaton.accepts(text) and len(text) <= (format_length(name) or len(text))


@given(st.dates())
def test_every_date_fits(date):
    assert fits("date", date.isoformat())


@pytest.mark.parametrize("year", [1, 4, 100, 400, 1900, 2000, 2021, 2023, 2024])
def test_only_days_that_were_fit(year):
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
def test_every_moment_fits(moment):
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


@pytest.mark.parametrize(
    ("name", "accepted", "refused"),
    [
        ("date", ["0400-02-29"], ["2021-02-29", "0100-02-29", "0000-01-01", "1963-06-1\u09ea"]),
        (
            "time",
            ["23:59:60Z", "08:30:06z", "01:29:60+01:30"],
            ["24:00:00Z", "22:59:60Z", "12:00:00"],
        ),
        (
            "date-time",
            ["1963-06-19t08:30:06.283185z"],
            ["2024-01-01T10:00:00", "2013-350T01:01:01Z"],
        ),
        (
            "date-time",
            ["1998-12-31T15:59:60.123-08:00"],
            ["1998-12-31T23:58:60Z", "2024-01-01T10:00:00Z\n"],
        ),
        (
            "duration",
            ["P1Y2M3DT4H5M6S", "P2W", "PT0S"],
            ["P", "PT", "P1Y2D", "P1YT", "PT0.5S", "P1Y2W"],
        ),
        (
            "email",
            ["ada.l+x@example.org", '"a b\\""@b', "a@[127.0.0.1]"],
            [".a@b", "a@-b", "a@[127.0.0.300]"],
        ),
        ("email", ["~@b.c"], ["a..b@c", "a@b@c", "a b@c", "not an email", "é@b"]),
        ("idn-email", ["실례@실례.테스트", "a@b"], ["2962", "user\uff20example.com", "a@b..c"]),
        (
            "hostname",
            ["a-b.example", "a--b", "a" * 63],
            ["-a", "a-", "a" * 64, "a.", "a_b", "xn--X"],
        ),
        ("hostname", ["a." * 126 + "a"], ["a." * 126 + "aa", ""]),
        ("ipv4", ["255.255.255.255"], ["256.1.1.1", "01.1.1.1", "1.1.1"]),
        ("ipv6", ["::ffff:1.2.3.4"], ["::ffff:1.2.3.04", "fe80::1%eth0", "1::2::3"]),
        (
            "uri",
            ["https://a.example/x?y=%20#z", "urn:a:b"],
            ["https://a b", "no-scheme", "http://a/%6G"],
        ),
        (
            "uri",
            ["http://-.~_!$&'()*+,;=:%40:80%2f::::::@a"],
            ["//a", "http:/[::1]", "http://a:b/c", "1a:b"],
        ),
        ("uri-reference", ["//a/b", "", "#x", "./a:b"], ["\\a", "#a#b", "a b"]),
        ("iri", ["http://ƒøø.ßår/?∂éœ=πîx#πîüx"], ["/abc", "http://a\\b", "a:\ufdd0"]),
        ("iri-reference", ["âππ", "http://ƒøø"], ["#ƒräg\\mênt", "\\\\WIN"]),
        ("uri-template", ["a{?b:3,c*}{+d.e}"], ["a{b", "{}", "{a,}", "{v:0}", "a b", "}"]),
        ("uuid", ["2EB8AA08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08aa9811eab4aa73b441d16380"]),
        ("json-pointer", ["", "/a~1b/", "/\n"], ["a", "/~2", "/~"]),
        ("relative-json-pointer", ["0#", "1/a//"], ["01#", "-1/a", "/a", "0##"]),
    ],
)
def test_a_format_tells_what_it_means(name, accepted, refused):
    assert [text for text in accepted if not fits(name, text)] == []
    assert [text for text in refused if fits(name, text)] == []


def test_a_format_meets_lengths_and_patterns():
    email = format_automaton("email")
    short = email.intersection(Automaton.lengths(0, 6))
    assert short.accepts("a@b.cd")
    assert not short.accepts("a@b.cde")
    assert not short.accepts("abcdef")


def test_other_formats_assert_nothing():
    assert format_automaton("regex") is None
    assert format_automaton("idn-hostname") is None
    assert format_automaton("colour") is None
