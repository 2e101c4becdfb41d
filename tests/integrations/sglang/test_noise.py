"""SGLang's own Gemma4Renoise, DiffusionGemma's algorithm, with constraints, on made-up logits."""

import json

import jsonschema
import numpy as np
import pytest
from blocks import answer
from invoice_requests import algorithm, check, requests_for, shortest
from weightless import Knowing

from dlm.grammar import JsonSchema

NAME, STEPS = "Gemma4Renoise", 48
SCHEMAS = {
    "reference": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 5},
                    "inner": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
                },
                "required": ["name", "inner"],
                "additionalProperties": False,
            }
        },
    },
    "dictionary": {
        "type": "object",
        "additionalProperties": {"type": "integer", "maximum": 99},
        "minProperties": 1,
        "maxProperties": 3,
    },
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"enum": ["lamp", "red paint"]}, {"type": "boolean"}],
        "items": False,
        "minItems": 3,
    },
    "union": {"anyOf": [{"type": "null"}, {"type": "number", "minimum": 0.5}, {"const": [1, {}]}]},
}


class Certain(Knowing):
    """A model that knows the text, and is certain of all tokens."""

    def row(self, key, position, holes, written):
        return np.where((row := super().row(key, position, holes, written)) == row.max(), 30.0, 0.0)


@pytest.mark.parametrize("fdfo", [False, True], ids=["sync", "fdfo"])
@pytest.mark.parametrize("block", [16, 256])
@pytest.mark.parametrize("model", ["knowing", "flat", "sure"])
def test_answers_are_valid_and_end_within_the_passes_of_sglang(
    models, compiled, vocabulary, model, block, fdfo
):
    """Half of the answers have to be the shortest one."""
    requests = requests_for(compiled, [1], budget=shortest(compiled)) + requests_for(compiled, [2])
    answer(algorithm(NAME, block, fdfo), requests, models[model], vocabulary.stops)
    check(requests, vocabulary)
    assert max(max(request.passes) for request in requests) <= STEPS
    assert len(requests[0].output) <= shortest(compiled) - 1


@pytest.mark.parametrize("fdfo", [False, True], ids=["sync", "fdfo"])
def test_canvases_of_a_certain_model_end_early_on_the_text_that_it_knows(
    compiled, vocabulary, texts, fdfo
):
    model = Certain(compiled, texts, right=1, slope=0)
    requests = requests_for(compiled, range(4))
    for request in requests:
        answer(algorithm(NAME, 64, fdfo), [request], model, vocabulary.stops)
    check(requests, vocabulary)
    assert [request.output for request in requests] == [texts[key][:-1] for key in range(4)]
    assert max(max(request.passes) for request in requests) <= 3


@pytest.mark.parametrize("fdfo", [False, True], ids=["sync", "fdfo"])
@pytest.mark.parametrize("model", ["flat", "sure"])
def test_a_canvas_that_sglang_finds_confident_goes_on_while_a_part_is_suspect(
    models, compiled, vocabulary, model, fdfo
):
    how = {"stopping_config": {"confidence_threshold": 100.0, "stability_threshold": 0}}
    requests = requests_for(compiled, range(3))
    answer(algorithm(NAME, 64, fdfo, **how), requests, models[model], vocabulary.stops)
    check(requests, vocabulary)
    assert max(max(request.passes) for request in requests) > 1


@pytest.mark.parametrize("steps", [1, 2])
def test_the_last_pass_of_a_canvas_is_valid_whatever_it_is(models, compiled, vocabulary, steps):
    requests = requests_for(compiled, range(2), budget=shortest(compiled) + 3)
    renoise = algorithm(NAME, 32, max_denoising_steps=steps)
    answer(renoise, requests, models["sure"], vocabulary.stops)
    check(requests, vocabulary)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_of_many_forms_are_kept(models, compiler, vocabulary, name):
    compiled = compiler.compile(JsonSchema(SCHEMAS[name]))
    requests = requests_for(compiled, [3], budget=shortest(compiled))
    requests += requests_for(compiled, [5], budget=90)
    answer(algorithm(NAME, 32, fdfo=True), requests, models["sure"], vocabulary.stops)
    for request in requests:
        assert request.grammar.error is None, request.grammar.error
        value = json.loads(vocabulary.text(request.output))
        jsonschema.Draft202012Validator(SCHEMAS[name]).validate(value)
