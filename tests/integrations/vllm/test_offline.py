"""`LLM.generate` with the plugin and without."""

import json
from pathlib import Path

import jsonschema

import dlm.integrations.vllm
from dlm.integrations.vllm.needs import missing


def job(item, **more):
    outputs = {"structured_outputs": {"json": item.schema}} if more.pop("bound", True) else {}
    return {"prompt": item.prompt, "max_tokens": 128} | outputs | more


def test_this_vllm_has_all_that_the_plugin_needs():
    import vllm

    assert missing(Path(vllm.__file__).parent) == []
    assert dlm.integrations.vllm.register() is None


def test_the_plugin_changes_no_free_text_and_without_it_a_schema_is_refused(answers, held_out):
    """Tokens of equal seeds and equal batches are equal."""
    free = [job(item, bound=False) for item in held_out[:16]]
    alone = [job(held_out[0])]
    without = answers(free, alone, plugin=False, seed=1)
    with_it = answers(free, seed=1)
    assert [one["token_ids"] for one in without["answers"]] == [
        one["token_ids"] for one in with_it["answers"]
    ]
    assert "Structured outputs are not yet supported" in without["refused"][0]


def test_budgets_down_to_the_shortest_answer_are_kept_and_impossible_jobs_are_refused(
    answers, held_out
):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    bound = {"prompt": "Say a and b.", "structured_outputs": {"json": schema}}
    choice = {"prompt": "Is it?", "structured_outputs": {"choice": ["yes", "no"]}}
    together = [bound | {"max_tokens": tokens} for tokens in (16, 17, 18, 20, 24, 40)]
    together += [choice | {"max_tokens": 8, "top_k": 1}, choice | {"max_tokens": 8, "top_p": 0.5}]
    together += [
        job(item) if i % 3 else job(item, bound=False) for i, item in enumerate(held_out[:9])
    ]
    refused = {
        "the shortest answer takes": bound | {"max_tokens": 2},
        "ignore_eos": choice | {"max_tokens": 8, "ignore_eos": True},
        "stop beside": choice | {"max_tokens": 8, "stop": ["x"]},
        "stop_token_ids": choice | {"max_tokens": 8, "stop_token_ids": [5]},
        "diffusion_read_only": choice | {"extra_args": {"diffusion_read_only": 1}},
        "dlm among extra_args": choice | {"extra_args": {"dlm": {"rules": "x"}}},
        "is not a client's to send": {"prompt": "x", "extra_args": {"dlm_tools": "{}"}},
        "json": {"prompt": "x", "structured_outputs": {"json": {"$ref": "#/nope"}}},
        "structured_outputs.json": {
            "prompt": "x",
            "structured_outputs": {
                "json": {"type": "array", "items": {}, "not": {"uniqueItems": True}}
            },
        },
    }
    found = answers(together, list(refused.values()))
    for text, error in zip(refused, found["refused"], strict=True):
        assert error is not None, text
        assert text in error
    for one, wanted in zip(found["answers"], together, strict=True):
        outputs = wanted.get("structured_outputs")
        if outputs is None:
            continue
        assert one["finish_reason"] in ("stop", "length")
        if "json" in outputs:
            jsonschema.validate(json.loads(one["text"]), outputs["json"])
        else:
            assert one["text"] in outputs["choice"]


def test_a_request_whose_constraint_fails_ends_with_an_error_and_the_others_continue(
    answers, held_out
):
    together = [job(item) for item in held_out[:4]] + [job(held_out[4], max_tokens=77)]
    together.append(job(held_out[5], bound=False))
    found = answers(together, fail_at=77)
    *others, broken, free = found["answers"]
    assert broken["finish_reason"] == "error"
    assert free["finish_reason"] in ("stop", "length")
    assert "a bug, by the test" in found["log"]
    for item, one in zip(held_out[:4], others, strict=True):
        assert one["finish_reason"] == "stop"
        jsonschema.validate(json.loads(one["text"]), item.schema)
