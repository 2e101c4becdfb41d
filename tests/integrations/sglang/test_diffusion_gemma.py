"""DiffusionGemma in SGLang's server: its own model file and algorithm, with random weights."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest
import renoised
from conftest import SCHEMAS, TINY, json_schema, served

MODELS = "gemma4_diffusion,gemma4_causal,gemma4_mm,gemma3_causal,gemma4_vision,gemma4_audio"
VARIABLES = {"DLM_TEST_MODELS": MODELS, "DLM_TEST_NOISE": "1"}
FLAGS = ("--dllm-algorithm", "Gemma4Renoise", "--disable-hybrid-swa-memory")


@pytest.fixture(scope="module", params=["--dllm-fdfo", "--no-dllm-fdfo"])
def noisy(request, tmp_path_factory):
    model = renoised.write(TINY, tmp_path_factory.mktemp("renoised"))
    folder = tmp_path_factory.mktemp("noisy")
    yield from served(model, folder, flags=(*FLAGS, request.param), variables=VARIABLES)


def needed(server, schema):
    """Return the tokens of the shortest answer."""
    answer = server.chat("x", response_format=json_schema(schema), max_tokens=1)
    return int(re.search(r"answer takes (\d+)", answer.json()["message"])[1])


def test_answers_are_valid_in_tight_budgets_beside_free_requests(noisy):
    """A budget of exactly the shortest answer, and one that holds more."""
    jobs = [(schema, more) for schema in SCHEMAS for more in (0, 40)]
    budgets = [needed(noisy, schema) + more for schema, more in jobs]

    def ask(i):
        if i % 3 == 2:
            return noisy.choice("word " * i, max_tokens=40)
        schema, _ = jobs[i % len(jobs)]
        bound = {"response_format": json_schema(schema), "max_tokens": budgets[i % len(jobs)]}
        return noisy.choice("word " * i, **bound)

    with ThreadPoolExecutor(4) as threads:
        choices = list(threads.map(ask, range(2 * len(jobs))))
    for i, choice in enumerate(choices):
        if i % 3 != 2:
            assert choice["finish_reason"] in ("stop", "length")
            schema, _ = jobs[i % len(jobs)]
            jsonschema.validate(json.loads(choice["message"]["content"]), schema)
    assert noisy.is_well()


def test_other_constraints_are_enforced_and_refused_with_their_reasons(noisy):
    assert re.fullmatch("(yes|no){2}", noisy.choice("x", regex="(yes|no){2}")["message"]["content"])
    grammar = 'root ::= "a" root | "b" [0-9]+'
    content = noisy.choice("x", ebnf=grammar, max_tokens=40)["message"]["content"]
    assert re.fullmatch("a*b[0-9]+", content)
    bound = {"response_format": json_schema(SCHEMAS[0])}
    refused = {
        "stop_strs beside a constraint": bound | {"stop": ["x"]},
        "request-level frequency_penalty;": bound | {"frequency_penalty": 1.0},
        "#/nowhere": {"response_format": json_schema({"$ref": "#/nowhere"})},
    }
    for reason, body in refused.items():
        answer = noisy.chat("x", **body)
        assert answer.status_code == 400
        assert reason in answer.json()["message"]


def test_the_context_ends_an_answer_in_time(noisy):
    """The prompt leaves room for two canvases, then for one, and for none."""
    used = noisy.chat("word " * 100, max_tokens=1).json()["usage"]["prompt_tokens"]
    single = (used - noisy.chat("x", max_tokens=1).json()["usage"]["prompt_tokens"]) / 100
    schema = {"type": "array", "minItems": 5, "items": {"enum": ["ab", "cd"]}}
    statuses = []
    for left in (2.5, 1.5, 0.5):
        words = int((1024 - left * renoised.CANVAS - used) / single) + 100
        tokens = int(left * renoised.CANVAS) - 12
        body = {"response_format": json_schema(schema), "max_tokens": tokens}
        answer = noisy.chat("word " * words, **body)
        statuses.append(answer.status_code)
        if answer.status_code == 200:
            content = answer.json()["choices"][0]["message"]["content"]
            jsonschema.validate(json.loads(content), schema)
    assert statuses == [200, 200, 400]
    assert noisy.is_well()
