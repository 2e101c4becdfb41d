"""Self-speculation in two passes: the tokens of left to right, in more passes than in one."""

import shutil

import nemotron
import pytest
from evaluation.two_passes import TwoPasses

from dlm import Autoregressive, DlmError, Engine, JsonSchema, Request
from dlm.engine import BUILT_IN

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
REQUESTS = [
    Request(prompt="Who is Ada?", constraint=JsonSchema(SCHEMA), max_tokens=48),
    Request(prompt="Say it again", max_tokens=24),
    Request(prompt="Once more, please", max_tokens=24),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    out = nemotron.write_wavering(tmp_path_factory.mktemp("wavering"))
    nemotron.write_adapter(out)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUILT_IN / name, out)
    return out


def answers(directory, decoding):
    engine = Engine.load(directory, slots=2, device="cpu", decoding=decoding)
    try:
        return engine.generate(REQUESTS)
    finally:
        engine.close()


def test_answers_are_those_left_to_right_and_each_block_takes_two_passes(directory):
    plain, drafted, twice = (
        answers(directory, decoding)
        for decoding in (Autoregressive(), Autoregressive(drafts=True), TwoPasses())
    )
    assert [r.token_ids for r in twice] == [r.token_ids for r in plain]
    proposed, kept = (
        sum(getattr(r.stats, name) for r in twice) for name in ("drafted", "drafts_kept")
    )
    assert 0 < kept < proposed
    for free in twice[1:]:  # each verifying pass writes a token more than it keeps
        assert free.stats.calls == 2 * (free.stats.tokens - free.stats.drafts_kept) - 1
    assert sum(r.stats.calls for r in twice) > sum(r.stats.calls for r in drafted)


def test_a_model_of_noise_has_no_drafts_in_a_pass_of_their_own():
    with pytest.raises(DlmError, match="drafts in a pass of their own need a masked model"):
        Engine.load(device="cpu", decoding=TwoPasses())
