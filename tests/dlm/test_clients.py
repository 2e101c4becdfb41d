"""Slots and passes are shared among clients."""

from types import SimpleNamespace

import pytest
from doubles import Scripted
from values import PROMPT, V

from dlm import Autoregressive, DlmError, Failed, Finished, Request
from dlm.scheduler import Scheduler


class Slots:
    """A scheduler without an engine: requests are told apart by their numbers."""

    def __init__(self, slots, fits=lambda _: True):
        self.begun, self.number = [], 0
        self.scheduler = Scheduler(
            slots, lambda *_: None, fits, lambda _, one: self.begun.append(one.number)
        )

    def add(self, *clients, size=1):
        """A request of each client, in this order; `a3` is three of `a`."""
        for client in clients:
            name, times = client[0], int(client[1:] or 1)
            for _ in range(times):
                one = SimpleNamespace(
                    number=self.number,
                    question=None,
                    ready=True,
                    paused=False,
                    last_pass=0,
                    size=size,
                )
                self.scheduler.add([one], None, name)
                self.number += 1

    def admit(self):
        """Whose requests begin now, as a text."""
        del self.begun[:]
        assert not self.scheduler.admit()
        by_number = {one.number: one.client for one in self.scheduler.running.values()}
        return "".join(by_number[number] for number in self.begun)

    def end(self, client):
        """End the oldest request of a client."""
        running = self.scheduler.running
        slots = [slot for slot, one in running.items() if one.client == client]
        self.scheduler.leave(min(slots, key=lambda slot: running[slot].number))

    def share(self):
        """Whose requests the next pass is for, and their numbers."""
        self.scheduler.share()
        some = [one for one in self.scheduler.running.values() if one.ready and not one.paused]
        return sorted((one.client, one.number) for one in some)


def test_slots_go_round_clients():
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


def test_a_request_that_memory_is_missing_for_is_not_overtaken_for_ever():
    free = [4]
    slots = Slots(4, lambda one: one.size <= free[0])
    slots.add("a", size=5)
    slots.add("b9")
    assert slots.admit() == ""
    for newcomer in "cdef":
        slots.add(newcomer)
        assert slots.admit() == ""
    free[0] = 5
    assert slots.admit().startswith("ab")


def test_newcomers_without_end_do_not_keep_a_client_waiting():
    slots = Slots(1)
    slots.add("z", "a2")
    served = slots.admit()
    for newcomer in "bcdefgh":
        slots.add(newcomer)
        slots.end(served[-1])
        served += slots.admit()
    assert served.count("a") == 2


def test_a_client_that_leaves_the_queue_has_no_turn():
    slots = Slots(1)
    slots.add("a", "b", "c")
    slots.admit()
    slots.scheduler.cancel(1)
    slots.end("a")
    assert slots.admit() == "c"


def test_a_pass_is_for_as_many_requests_of_each_client():
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


def test_a_request_that_waits_for_its_check_takes_no_part_in_a_pass():
    slots = Slots(4)
    slots.add("a3", "b1")
    slots.admit()
    checked = next(one for one in slots.scheduler.running.values() if one.client == "b")
    checked.ready = False
    assert [client for client, _ in slots.share()] == ["a", "a", "a"]


def ends(engine):
    found = {}
    while engine.busy:
        found |= {
            event.request: event for event in engine.step() if isinstance(event, Finished | Failed)
        }
    return found


def asks(seed=0, tokens=64):
    return Request(token_ids=PROMPT, max_tokens=tokens, seed=seed)


def test_answers_do_not_depend_on_the_clients_beside_them(engine_of, tokens_of):
    script = tokens_of("hi there, this is more than a canvas of words<turn|>")
    alone = engine_of(Scripted(V, len(PROMPT), script)).generate(asks())
    engine = engine_of(Scripted(V, len(PROMPT), script), slots=6)
    numbers = []
    for client, times in (("a", 9), ("b", 1), ("c", 3)):
        for _ in range(times):
            prepared = engine.prepare(asks())
            engine.start(prepared, client)
            numbers.append(prepared.number)
    found = ends(engine)
    for number in numbers:
        assert found[number].result.token_ids == alone.token_ids
        assert found[number].result.stats.denoiser_calls == alone.stats.denoiser_calls


def test_a_client_with_one_request_ends_before_one_that_has_filled_the_slots(engine_of, tokens_of):
    script = tokens_of("word " * 40)
    engine = engine_of(Scripted(V, len(PROMPT), script), slots=4)
    engine.reserve(1)
    greedy = [engine.prepare(asks()) for _ in range(8)]
    for one in greedy:
        engine.start(one, "a")
    for _ in range(2):
        engine.step()
    single = engine.prepare(asks())
    engine.start(single, "b")
    order = list(ends(engine))
    assert order.index(single.number) == 0


def test_left_to_right_all_requests_are_in_every_pass(engine_of, tokens_of):
    model = Scripted(V, len(PROMPT), tokens_of("word " * 8))
    engine = engine_of(model, slots=4, decoding=Autoregressive())
    for client in "aaab":
        engine.start(engine.prepare(asks(tokens=8)), client)
    found = ends(engine)
    assert len({one.result.stats.causal_calls for one in found.values()}) == 1


@pytest.mark.parametrize("slots", [-1, 4, 9])
def test_at_least_one_slot_is_for_everybody(engine_of, slots):
    with pytest.raises(DlmError, match=f"reserved is {slots}: it takes 0 to 3"):
        engine_of(Scripted(V, len(PROMPT), [106]), slots=4).reserve(slots)
