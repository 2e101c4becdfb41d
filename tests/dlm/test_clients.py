"""Sharing of slots and passes among clients."""

from types import SimpleNamespace

import pytest
from doubles import Ledger
from driven import ends_of
from values import PROMPT

from dlm import Autoregressive, DlmError, Request
from dlm.scheduler import Scheduler


class Slots:
    """A scheduler without an engine; requests are identified by their numbers."""

    def __init__(self, slots, cache=None):
        self.begun, self.number = [], 0
        self.scheduler = Scheduler(slots, cache or Ledger(slots))

    def add(self, *clients, size=1):
        """Add a request of each client, in this order; `a3` is three of `a`."""
        for client in clients:
            name, times = client[0], int(client[1:] or 1)
            for _ in range(times):
                one = SimpleNamespace(
                    number=self.number,
                    question=None,
                    ready=True,
                    paused=False,
                    last_pass=0,
                    leave_checks=lambda: None,
                    most_tokens=size,
                )
                self.scheduler.add([one], None, name)
                self.number += 1

    def admit(self):
        """Return the clients of the requests that begin now, as a text."""
        del self.begun[:]
        self.scheduler.begin_round()
        while (waiting := self.scheduler.next()) is not None:
            _, sequence = self.scheduler.enter(waiting)
            self.begun.append(sequence.number)
        by_number = {one.number: one.client for one in self.scheduler.running.values()}
        return "".join(by_number[number] for number in self.begun)

    def end(self, client):
        """End the oldest request of a client."""
        running = self.scheduler.running
        slots = [slot for slot, one in running.items() if one.client == client]
        self.scheduler.leave(min(slots, key=lambda slot: running[slot].number))

    def share(self):
        """Return the clients and numbers of the requests of the next pass."""
        self.scheduler.share()
        some = [one for one in self.scheduler.running.values() if one.ready and not one.paused]
        return sorted((one.client, one.number) for one in some)


def test_free_slots_go_to_each_client_in_turn():
    slots = Slots(4)
    slots.add("a8", "b4", "c1")
    assert slots.admit() == "abca"


def test_a_client_s_own_requests_are_served_in_their_order():
    slots = Slots(1)
    slots.add("a4")
    order = []
    for _ in range(4):
        slots.admit()
        order += slots.begun
        slots.end("a")
    assert order == [0, 1, 2, 3]


def test_with_one_slot_clients_take_turns():
    slots = Slots(1)
    slots.add("a5", "b2")
    served = slots.admit()
    for _ in range(6):
        slots.end(served[-1])
        served += slots.admit()
    assert served == "ababaaa"


def test_a_free_slot_goes_to_the_client_that_has_the_fewest():
    slots = Slots(4)
    slots.add("a9")
    assert slots.admit() == "aaaa"
    slots.add("b2")
    slots.end("a")
    assert slots.admit() == "b"
    slots.end("a")
    assert slots.admit() == "b"
    slots.end("a")
    assert slots.admit() == "a"


def test_reserved_slots_are_for_clients_that_have_none():
    slots = Slots(4)
    slots.scheduler.reserve(2)
    slots.add("a9")
    assert slots.admit() == "aa"
    slots.add("b9")
    assert slots.admit() == "b"
    slots.add("c9")
    assert slots.admit() == "c"
    slots.end("a")
    assert slots.admit() == ""
    slots.end("a")
    assert slots.admit() == "a"


def test_a_request_that_waits_for_memory_is_not_overtaken():
    cache = Ledger(4)
    cache.fits = lambda tokens: tokens <= cache.free
    cache.free = 4
    slots = Slots(4, cache)
    slots.add("a", size=5)
    slots.add("b9")
    assert slots.admit() == ""
    for newcomer in "cdef":
        slots.add(newcomer)
        assert slots.admit() == ""
    cache.free = 5
    assert slots.admit().startswith("ab")


def test_a_client_is_served_although_new_clients_keep_coming():
    slots = Slots(1)
    slots.add("z", "a2")
    served = slots.admit()
    for newcomer in "bcdefgh":
        slots.add(newcomer)
        slots.end(served[-1])
        served += slots.admit()
    assert served.count("a") == 2


def test_a_client_without_waiting_requests_has_no_turn():
    slots = Slots(1)
    slots.add("a", "b", "c")
    slots.admit()
    slots.scheduler.cancel(1)
    slots.end("a")
    assert slots.admit() == "c"


def test_a_pass_is_for_the_same_number_of_requests_of_each_client():
    slots = Slots(8)
    slots.add("a5")
    slots.admit()
    assert len(slots.share()) == 5
    slots.add("b1", "c2")
    slots.admit()
    seen = [slots.share() for _ in range(5)]
    for some in seen:
        assert [client for client, _ in some] == ["a", "b", "c"]
    assert {number for some in seen for client, number in some if client == "a"} == set(range(5))
    slots.end("b")
    assert [client for client, _ in slots.share()] == ["a", "a", "c", "c"]


def test_a_request_whose_answer_is_being_checked_takes_no_part_in_a_pass():
    slots = Slots(4)
    slots.add("a3", "b1")
    slots.admit()
    checked = next(one for one in slots.scheduler.running.values() if one.client == "b")
    checked.ready = False
    assert [client for client, _ in slots.share()] == ["a", "a", "a"]


def request(max_tokens=64):
    return Request(token_ids=PROMPT, max_tokens=max_tokens, seed=0)


def test_answers_do_not_depend_on_the_clients_beside_them(scripted):
    text = "hi there, this is more than a canvas of words<turn|>"
    alone = scripted(text).generate(request())
    engine = scripted(text, slots=6)
    for client in "a" * 9 + "b" + "c" * 3:
        engine.start(engine.prepare(request()), client)
    ends = ends_of(engine)
    assert len(ends) == 13
    assert not engine.busy
    for end in ends.values():
        assert end.result.token_ids == alone.token_ids
        assert end.result.stats.denoiser_calls == alone.stats.denoiser_calls


def test_a_client_with_one_request_ends_before_one_that_has_filled_the_slots(scripted):
    engine = scripted("word " * 40, slots=4)
    engine.reserve(1)
    for _ in range(8):
        engine.start(engine.prepare(request()), "a")
    for _ in range(2):
        engine.step()
    single = engine.prepare(request())
    engine.start(single, "b")
    assert next(iter(ends_of(engine))) == single.number


def test_left_to_right_all_requests_are_in_every_pass(scripted):
    engine = scripted("word " * 8, slots=4, decoding=Autoregressive())
    for client in "aaab":
        engine.start(engine.prepare(request(max_tokens=8)), client)
    assert len({end.result.stats.causal_calls for end in ends_of(engine).values()}) == 1


@pytest.mark.parametrize("slots", [-1, 4, 9])
def test_not_all_slots_can_be_reserved(scripted, slots):
    with pytest.raises(DlmError, match=f"reserved must be 0 to 3 of the slots, got {slots}"):
        scripted("<turn|>", slots=4).reserve(slots)
