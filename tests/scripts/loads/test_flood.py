"""Figures of the flood script, without a flood."""

import threading
from dataclasses import replace

import pytest
from loads import flood

from dlm import RequestError
from dlm.images import ImageFile, Picture

ROW = flood.FloodRow(
    attack="quiet",
    answers=3,
    refused=0,
    median=0.1,
    worst=0.2,
    before=400.0,
    peak=410.0,
    after=405.0,
)


def test_an_answer_that_does_not_come_has_no_status():
    took, status = flood.ask(1, "key")  # a port on which nothing listens
    assert status == 0
    assert took < flood.PATIENCE


def test_the_table_compares_times_with_the_longest_quiet_one():
    times = {"median": 0.2, "worst": 0.5, "peak": 420.0, "after": 406.0}
    beside = replace(ROW, attack="half-open", refused=1, **times)
    last = flood.table([ROW, beside]).splitlines()[-1]
    assert last == "| half-open | 0.200 | 0.500 | 2.50 | 1 of 3 | 400, 420, 406 |"


@pytest.mark.parametrize(
    ("rows", "held"),
    [
        ([ROW, ROW], True),
        ([ROW, replace(ROW, worst=0.61)], False),
        ([ROW, replace(ROW, refused=1)], False),
    ],
)
def test_a_server_holds_unless_the_innocent_client_is_refused_or_slowed_down(rows, held):
    assert flood.held(rows, within=3.0) == held


def test_pictures_of_many_scans_are_refused_and_those_of_fewer_are_decoded(monkeypatch):
    monkeypatch.setattr(flood, "PIXELS", (80, 48))
    fewest, *others = (flood.picture_of(scans) for scans in flood.SCANS)
    assert Picture(ImageFile(fewest), "it").decoded(4000).size == (80, 48)
    for data in others:
        with pytest.raises(RequestError, match="of at most 64 scans of components, got more"):
            Picture(ImageFile(data), "it").decoded(4000)


def test_an_attacker_sends_its_bodies_in_turn_until_the_attack_is_over(monkeypatch):
    sent, over = [], threading.Event()

    class Connection:
        def __init__(self, *args, **more): ...

        def request(self, method, path, body, headers):
            sent.append((method, path, body, headers["Authorization"]))
            if len(sent) == 3:
                over.set()
            raise OSError

        def close(self): ...

    monkeypatch.setattr(flood, "HTTPConnection", Connection)
    begun = threading.Event()
    flood.posted(1, "/a", [b"x", b"y"], ["k"], begun, over)
    assert begun.is_set() is False
    assert [one[2] for one in sent] == [b"x", b"y", b"x"]
    assert sent[0] == ("POST", "/a", b"x", "Bearer k")
