"""Limits of connections: the choice of those that are closed when there are too many."""

import resource

import pytest

from dlm import DlmError
from dlm.serving.guard import network_of
from dlm.serving.protocol import FILES, Connections, connections_allowed


class Line:
    """Connection that records whether it is open."""

    def __init__(self):
        self.open = True

    def evict(self):
        self.open = False


def admitted(book, count, address="1.1.1.1"):
    lines = [Line() for _ in range(count)]
    for line in lines:
        assert book.admit(line, address)
    return lines


def opened(lines):
    return [line.open for line in lines]


def test_the_oldest_idle_connection_is_closed():
    book = Connections(3, 3)
    lines = admitted(book, 3)
    book.mark_busy(lines[0])
    lines += admitted(book, 1)
    assert opened(lines) == [True, False, True, True]
    book.mark_idle(lines[0], kept=False)  # later than the others
    lines += admitted(book, 1)
    assert opened(lines) == [True, False, False, True, True]
    assert len(book) == 3


def test_while_all_are_busy_new_ones_are_refused():
    book = Connections(2, 2)
    for line in admitted(book, 2):
        book.mark_busy(line)
    assert not book.admit(Line(), "2.2.2.2")
    assert len(book) == 2


@pytest.mark.parametrize(("new", "kept"), [(8, 2), (2, 8)])
def test_the_larger_of_new_and_kept_connections_lose_places(new, kept):
    book = Connections(new + kept, 100)
    kept_lines, new_lines = admitted(book, kept), admitted(book, new)
    for line in kept_lines:
        book.mark_idle(line, kept=True)
    admitted(book, 2, "2.2.2.2")
    larger, smaller = (new_lines, kept_lines) if new > kept else (kept_lines, new_lines)
    assert all(opened(smaller))
    assert not all(opened(larger))


def test_an_address_at_its_limit_loses_its_own_oldest_connection():
    book = Connections(10, 3)
    others, lines = admitted(book, 3, "2.2.2.2"), admitted(book, 5)
    assert opened(lines) == [False, False, True, True, True]
    assert all(opened(others))
    for line in lines[2:]:
        book.mark_busy(line)
    assert not book.admit(Line(), "1.1.1.1")
    assert book.admit(Line(), "2.2.2.2")
    assert book.admit(Line(), None)


def test_a_removed_connection_is_not_counted():
    book = Connections(2, 1)
    (line,) = admitted(book, 1)
    book.mark_busy(line)
    book.remove(line)
    book.remove(line)
    book.mark_busy(line)
    admitted(book, 1)
    assert len(book) == 1


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("testclient", "testclient"),
        (None, None),
        ("", None),
    ],
)
def test_clients_are_counted_by_ipv4_address_or_ipv6_network(host, network):
    assert network_of(host) == network


@pytest.mark.parametrize(
    ("files", "most", "requests", "allowed"),
    [
        (1024, None, 264, 1024 - FILES),
        (65_536, None, 264, 2048),
        (65_536, None, 5000, 10_000),
        (1024, None, 5000, 1024 - FILES),
        (1024, 100, 264, 100),
        (resource.RLIM_INFINITY, None, 264, 2048),
        (resource.RLIM_INFINITY, 100_000, 264, 100_000),
    ],
)
def test_the_limit_of_open_files_bounds_connections(monkeypatch, files, most, requests, allowed):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert connections_allowed(most, requests) == allowed


@pytest.mark.parametrize(
    ("files", "most", "problem"),
    [
        (1024, 1000, f"max_connections must be at most {1024 - FILES}, .* got 1000"),
        (FILES, None, f"ulimit -n must be at least {FILES + 1}, .* got {FILES}"),
    ],
)
def test_more_connections_than_files_may_be_open_are_refused(monkeypatch, files, most, problem):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    with pytest.raises(DlmError, match=problem):
        connections_allowed(most, 1)
