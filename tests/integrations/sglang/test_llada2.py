"""LLaDA2 in SGLang's server: its own model file, with experts and random weights; reasoning."""

import json
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import llada2
import pytest
from conftest import SCHEMAS, TINY, diffusion, json_schema, served

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}"
    "{% if open %}<think>\n{% endif %}"
)


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    model = llada2.write(TINY, tmp_path_factory.mktemp("llada2"))
    (model / "chat_template.jinja").write_text(TEMPLATE)
    folder = tmp_path_factory.mktemp("experts")
    flags = diffusion(folder, "LowConfidence", 32, "--reasoning-parser", "qwen3")
    yield from served(model, folder, flags=flags, variables={"DLM_TEST_MODELS": "llada2"})


def test_answers_are_valid_beside_free_requests(experts):
    def ask(i):
        bound = {"response_format": json_schema(SCHEMAS[i % len(SCHEMAS)])} if i % 3 else {}
        plain = {"chat_template_kwargs": {"enable_thinking": False}}
        return experts.choice("word " * (i + 1), max_tokens=128, **bound, **plain)

    with ThreadPoolExecutor(4) as threads:
        choices = list(threads.map(ask, range(3 * len(SCHEMAS))))
    for i, choice in enumerate(choices):
        if i % 3:
            content = choice["message"]["content"]
            jsonschema.validate(json.loads(content), SCHEMAS[i % len(SCHEMAS)])
            assert not choice["message"]["reasoning_content"]
    assert experts.is_well()


@pytest.mark.parametrize("opened", [False, True], ids=["by no one", "by the prompt"])
def test_reasoning_comes_before_an_answer_that_is_valid(experts, opened):
    """A model of random weights does not close its reasoning: the budget does."""
    for i, schema in enumerate(SCHEMAS):
        choice = experts.choice(
            "word " * i,
            response_format=json_schema(schema),
            max_tokens=160,
            chat_template_kwargs={"enable_thinking": True, "open": opened},
            custom_params={"thinking_budget": 20},
        )
        assert choice["message"]["reasoning_content"]
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)
