"""Small random SDAR and LLaDA2 checkpoints, served: what their blocks may not break."""

import json
import shutil

import jsonschema
import pytest
from asks import PERSON, turn
from block_models import LLADA2, SDAR, SDAR_MOE, Oracle
from exhaustive import by_default
from specs import checked
from values import PROMPT

from dlm import Engine, JsonSchema, Request
from dlm.engine import BUILT_IN

FILES = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
SERVED = {"vocab_size": 1536, "mask_token_id": 4}
CONFIGS = {"llada2": LLADA2, "sdar": SDAR, "sdar_moe": SDAR_MOE}


@pytest.fixture(scope="module", params=by_default(CONFIGS))
def directory(request, tmp_path_factory):
    """Return a directory of the family, with the tokenizer of the built-in model."""
    path = Oracle(CONFIGS[request.param] | SERVED).write(tmp_path_factory.mktemp("served"))
    for name in FILES:
        shutil.copy(BUILT_IN / name, path)
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 106], "pad_token_id": 1}')
    return path


def test_answers_over_http_are_valid_and_complete(directory, serve):
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    body = {"model": "blocks", "messages": turn("Who?"), "response_format": schema}
    body["max_tokens"] = 70  # random weights would write on
    with serve(Engine.load(directory, slots=2), names=("blocks",)) as running:
        answer = running.http.post("/v1/chat/completions", json=body).json()
    jsonschema.validate(json.loads(answer["choices"][0]["message"]["content"]), PERSON)


def test_drafts_on_the_wire_say_which_tokens_are_masks(directory, serve):
    body = {"model": "blocks", "messages": turn("Who?"), "max_tokens": 12, "stream": True}
    with serve(Engine.load(directory), names=("blocks",)) as running:
        text = running.http.post(
            "/v1/chat/completions", json=body | {"stream_options": {"drafts": True}}
        ).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line[6:].startswith("{")]
    drafts = [chunk["draft"] for chunk in chunks if "draft" in chunk]
    assert any(any(draft["masked"]) for draft in drafts)
    for draft in drafts:
        assert draft["masked"] == [not kept for kept in draft["accepted"]]
        assert not any(draft["masked"][: draft["pinned"]])


@pytest.mark.exhaustive
def test_a_request_has_the_same_answer_wherever_its_prompt_ends_in_a_block_and_beside_others(
    directory,
):
    engine = Engine.load(directory, slots=4)
    spec = JsonSchema(PERSON)
    requests = [
        Request(token_ids=[*PROMPT, *range(300, 300 + n)], constraint=spec, max_tokens=70, seed=n)
        for n in range(2)
    ]
    together = engine.generate(requests)
    for request, result in zip(requests, together, strict=True):
        assert result.complete
        jsonschema.validate(json.loads(result.text), PERSON)
        assert 4 not in result.token_ids
        assert engine.generate(request).token_ids == result.token_ids


def test_a_refused_answer_is_replaced_alike_whether_its_prompt_is_cached_or_not(directory):
    schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}
    spec, engine = checked(schema | {"uniqueItems": True}), Engine.load(directory)
    prompt = [2, *range(300, 349)]
    request = Request(token_ids=prompt, constraint=spec, max_tokens=90)
    alone, again = Engine.load(directory).generate(request), engine.generate([request] * 2)
    assert alone.stats.cached == 0 < again[1].stats.cached
    assert [result.token_ids for result in again] == [alone.token_ids] * 2
    assert sorted(json.loads(alone.text)) == [1, 2]
    assert alone.stats.rollbacks
    engine.close()


def test_tools_are_refused_where_the_chat_template_shows_no_form_of_calls(directory, serve):
    tool = {"type": "function", "function": {"name": "note", "parameters": PERSON}}
    body = {"model": "blocks", "messages": turn("Who?"), "tools": [tool], "max_tokens": 50}
    with serve(Engine.load(directory), names=("blocks",)) as running:
        for stream in (False, True):
            answer = running.http.post("/v1/chat/completions", json=body | {"stream": stream})
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert "chat template shows no form of calls that is known (gemma4, herm" in str(error)
            assert error["param"] == "tools"
        plain = running.http.post("/v1/chat/completions", json=body | {"tool_choice": "none"})
        assert plain.status_code == 200
