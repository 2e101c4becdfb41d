"""Names of bodies: the same for bodies that begin alike."""

import json
import re

from dlm.serving.prefix import prefix_of


def named(**body):
    return prefix_of(json.dumps(body).encode())


def chat(*turns, **more):
    messages = [{"role": role, "content": content} for role, content in turns]
    return named(messages=messages, **more)


def test_later_turns_and_other_fields_do_not_count():
    first = chat(("system", "Be brief."), ("user", "Hi."))
    later = (("system", "Be brief."), ("user", "Hi."), ("assistant", "Hello."), ("user", "Bye."))
    assert chat(*later, seed=3, stream=True) == first


def test_instructions_tools_and_the_first_message_count():
    names = {
        chat(("system", "Be brief."), ("user", "Hi.")),
        chat(("system", "Be long."), ("user", "Hi.")),
        chat(("system", "Be brief."), ("user", "Hello.")),
        chat(("system", "Be brief."), ("user", "Hi."), tools=[{"type": "function"}]),
        named(prompt="Hi."),
        named(prompt=[1, 2, 3]),
    }
    assert len(names) == 6


def test_items_of_responses_and_the_system_of_messages_count():
    items = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    first = named(input=items[:1], instructions="Be brief.")
    assert named(input=items, instructions="Be brief.") == first
    names = {
        first,
        named(input=items[:1]),
        named(input="Hi."),
        chat(("user", "Hi."), system="Be brief."),
        chat(("user", "Hi."), system="Be long."),
    }
    assert len(names) == 5


def test_differences_after_a_long_beginning_do_not_count():
    document = "It was a dark and stormy night. " * 40
    assert len({chat(("user", document + question)) for question in ("Who?", "Where?")}) == 1
    assert named(prompt=document + "Who?") == named(prompt=document + "Where?")


def test_an_invalid_body_has_a_name():
    for raw in (b"", b"{", b"[" * 100_000, b"3", b'{"messages": 3}', b"\xff"):
        assert re.fullmatch("[0-9a-f]{16}", prefix_of(raw))
