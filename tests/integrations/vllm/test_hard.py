"""Hard cases: a model of random weights, real schemas, aborts, a full cache, hostile schemas."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from time import perf_counter

import jsonschema
import pytest
from conftest import TINY, served
from measure.schemas import read_schemas

MANY = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer"}},
        "required": ["name", "n"],
        "additionalProperties": False,
    },
    "minItems": 3,
    "maxItems": 5,
}
HOSTILE = {  # a thousand states, different ones for each text
    "type": "array",
    "minItems": 3,
    "items": {"type": "string", "pattern": "^[ab]*a[ab]{10}$"},
}


_STEPS = "vllm:iteration_tokens_total_count"  # of the engine, so far
_PASSES = 24  # at most over a canvas, by the model's generation config


def needed(refusal):
    """Return the tokens of the shortest answer, from the refusal of a budget of one token."""
    return int(refusal.split("the shortest answer takes ")[1].split()[0])


def real_schemas(path, count):
    return [row["schema"] for row in Random(0).sample(read_schemas(Path(path)), count)]


def test_a_model_of_random_weights_keeps_real_schemas_in_tight_and_loose_budgets(
    answers, wild_model, request
):
    path = request.config.getoption("--schemas")
    if path is None:
        pytest.skip("needs --schemas FILE")
    schemas = real_schemas(path, 110)
    jobs = [{"prompt": "x", "structured_outputs": {"json": schema}} for schema in schemas]
    found = answers([], [job | {"max_tokens": 1} for job in jobs], max_model_len=2048)
    refusals = zip(jobs, found["refused"], strict=True)
    served = [(job, needed(reason)) for job, reason in refusals if reason and "shortest" in reason]
    served = [(job, tokens) for job, tokens in served if tokens <= 120][:60]
    print(f"{len(served)} of {len(jobs)} schemas can be enforced, in at most 120 tokens")
    tight = [job | {"max_tokens": tokens} for job, tokens in served]
    loose = [job | {"max_tokens": tokens + 32} for job, tokens in served]
    found = answers(tight + loose, model=wild_model, max_model_len=2048)
    for job, answer in zip(tight + loose, found["answers"], strict=True):
        schema = job["structured_outputs"]["json"]
        assert answer["finish_reason"] in ("stop", "length"), schema
        validator = jsonschema.validators.validator_for(schema)
        validator(schema).validate(json.loads(answer["text"]))
    print(f"{len(found['answers'])} answers valid and complete in {found['seconds']:.0f} s")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A server whose cache has room for few answers."""
    args = ("--max-model-len", "512", "--max-num-seqs", "8", "--num-gpu-blocks-override", "24")
    folder = tmp_path_factory.mktemp("small")
    yield from served(folder, model=TINY, args=args)


def test_no_request_is_lost_among_aborts_and_preemptions(small, request):
    count = request.config.getoption("--mixed")
    form = {"type": "json_schema", "json_schema": {"name": "many", "schema": MANY}}

    def ask(i):
        dice = Random(i)
        bound = {"response_format": form} if i % 3 else {}
        prompt = (
            f"List {dice.randint(3, 5)} names and numbers as JSON."
            + " Please." * dice.randint(0, 20)
        )
        stream = small.chat(prompt, max_tokens=120, stream=True, **bound)
        text, reason, most = "", None, dice.randint(0, 3) if i % 5 == 0 else None
        for number, chunk in enumerate(stream):
            if number == most:
                stream.close()
                return None
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
        if not bound:
            return reason in ("stop", "length")
        jsonschema.validate(json.loads(text), MANY)
        return reason in ("stop", "length")

    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(ask, range(count)))
    metrics = small.metrics()
    preempted = int(metrics["vllm:num_preemptions_total"])
    print(f"{found.count(True)} answered, {found.count(None)} aborted, {preempted} preemptions")
    assert False not in found
    assert preempted > 0
    assert metrics["vllm:num_requests_running"] == 0
    assert "Traceback" not in small.log.read_text()


def test_a_hostile_schema_does_not_hold_up_the_others(server, held_out):
    def seconds():
        begun = perf_counter()
        for item in held_out[:10]:
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": item.schema}}
            json.loads(server.chat(item.prompt, response_format=form).choices[0].message.content)
        return (perf_counter() - begun) / 10

    def hostile():
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": HOSTILE}}
        choice = server.chat("x", response_format=form, max_tokens=400).choices[0]
        return choice.finish_reason, [len(one) for one in json.loads(choice.message.content)]

    def other():
        """Generate an equally long answer without a grammar."""
        server.chat("x", max_tokens=400)

    seconds()
    beside, steps = {}, {}
    for name, ask in (("free", other), ("hostile", hostile)):
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(ask)
            before = server.metrics()[_STEPS]
            beside[name] = seconds()
            steps[name] = int(server.metrics()[_STEPS] - before)
            ended = answer.result()
    print(f"an answer takes {beside['free']:.2f} s beside a free one, {beside['hostile']:.2f} s")
    print(f"beside a hostile one, which ended: {ended}; steps of the engine: {steps}")
    assert ended[0] in ("stop", "length")
    # Each of the ten answers takes two canvases at most; with their commits and prompts:
    assert steps["hostile"] <= 10 * 2 * (_PASSES + 2)
