"""`/v1/decisions`, asked by the real client, alone and beside answers that stream."""

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import torch
from doubles import Double, Random
from gated import Gated
from hanging_up import hanging_up
from prometheus_client.parser import text_string_to_metric_families
from values import V
from waiting import wait_until

from dlm import Autoregressive, Decision, Request

TEXT = "This is Olga Lopez, 61 years old, a warrior of Oslo."
QUESTIONS = [
    {"type": "predicate", "name": "old", "instructions": "Is she over 60?"},
    {
        "type": "choice",
        "name": "role",
        "instructions": "What is she?",
        "choices": [{"value": "mage"}, {"value": "warrior", "description": "fights"}],
    },
    {
        "type": "score",
        "instructions": "How old is she?",
        "levels": [{"label": "young"}, {"label": "middle-aged"}, {"label": "old"}],
    },
    {
        "type": "choice",
        "instructions": "Is it so?",
        "choices": [{"value": True}, {"value": False}, {"value": "truth"}],
    },
]
ASKED = {"model": "tiny", "input": TEXT, "questions": QUESTIONS}
PREDICATES = {"input": TEXT, "questions": [QUESTIONS[0]] * 12}
HI = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 64}


def metrics(served):
    text = served.http.get("/metrics").text
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {(s.name, s.labels.get("finished_reason")): s.value for s in samples}


def test_answers_are_the_engines_own_in_the_clients_form(tiny):
    answer = tiny.client.decisions.create(**ASKED)
    alone = tiny.http.post("/v1/decisions", json=ASKED).json()
    assert alone["answers"] == answer.to_dict()["answers"]
    old, role, age, so = answer.answers
    assert (old.type, role.type, age.type, so.type) == ("predicate", "choice", "score", "choice")
    assert (old.name, role.name, age.name) == ("old", "role", None)
    assert 0 < old.probability < 1
    assert role.choice in ("mage", "warrior")
    assert sum(one.probability for one in role.probabilities) == pytest.approx(1)
    assert [(one.label, one.value) for one in age.probabilities] == [
        ("young", 0),
        ("middle-aged", 1),
        ("old", 2),
    ]
    expected = age.probabilities[1].probability + 2 * age.probabilities[2].probability
    assert age.score == pytest.approx(expected)
    assert [one.value for one in so.probabilities] == [True, False, "truth"]
    assert answer.model == "tiny"


def test_usage_counts_the_prompts_and_what_of_them_was_there(tiny):
    usage = tiny.client.decisions.create(**ASKED | {"input": TEXT * 9}).usage
    again = tiny.client.decisions.create(**ASKED | {"input": TEXT * 9}).usage
    assert usage.input_tokens == again.input_tokens == usage.total_tokens
    assert usage.output_tokens == 0
    details = usage.input_tokens_details
    assert details.cached_tokens + details.cache_write_tokens == usage.input_tokens
    assert details.cached_tokens > usage.input_tokens / 2
    assert again.input_tokens_details.cached_tokens > details.cached_tokens


def test_a_conversation_is_asked_about_as_it_is(tiny):
    said = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": TEXT}]}]
    asked = ASKED | {"input": said}
    answers = tiny.client.decisions.create(**ASKED).answers
    assert tiny.client.decisions.create(**asked).answers == answers


def test_decisions_and_streams_side_by_side_are_what_each_is_alone(tiny):
    def decided(seed):
        return tiny.http.post("/v1/decisions", json=ASKED | {"seed": seed}).json()["answers"]

    def said(seed):
        more = {"seed": seed, "stream": True, "response_format": {"type": "json_object"}}
        chunks = tiny.client.chat.completions.create(**HI | more)
        return "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)

    alone = [decided(seed) for seed in range(2)], [said(seed) for seed in range(2)]
    with ThreadPoolExecutor(4) as pool:
        answers, texts = pool.map(decided, range(2)), pool.map(said, range(2))
        assert (list(answers), list(texts)) == alone


def test_metrics_count_decisions_and_their_questions(engine_of, serve):
    with serve(engine_of(Random(V, seed=1), slots=4)) as served:
        before = metrics(served)
        usage = served.client.decisions.create(**ASKED).usage
        after = metrics(served)
    rise = {key: after[key] - before[key] for key in before}
    assert rise["dlm:request_success_total", "decided"] == 1
    assert rise["dlm:questions_total", None] == len(QUESTIONS)
    assert rise["dlm:diffusion_num_denoising_steps_total", None] == len(QUESTIONS)
    assert rise["dlm:prompt_tokens_total", None] == usage.input_tokens
    assert rise["dlm:generation_tokens_total", None] == 0
    assert rise["dlm:e2e_request_latency_seconds_count", None] == 1
    assert rise["dlm:request_queue_time_seconds_count", None] == 1


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"questions": []}, "questions", "questions is an empty list"),
        ({"questions": QUESTIONS * 51}, "questions", "questions holds 204: it takes 1 to 200"),
        (
            {"questions": [QUESTIONS[0], QUESTIONS[1] | {"choices": [{"value": "a " * 99}]}]},
            "questions",
            r"questions\[1\]: the label 'a a .* tokens with its stop, more than a canvas",
        ),
        ({"input": "word " * 5000}, "questions", r"questions\[0\]: \d+ prompt tokens: this model"),
        ({"input": 3}, "input", "input is 3"),
        ({"extra_body": {"top_p": 0.5}}, "top_p", "top_p is 0.5, which is not supported"),
        ({"extra_body": {"stream": True}}, "stream", "stream is unknown here"),
        ({"extra_body": {"seed": "x"}}, "seed", "seed is 'x'"),
    ],
)
def test_what_the_client_can_mend_is_a_400(tiny, fields, param, message):
    with pytest.raises(openai.BadRequestError, match=message) as raised:
        tiny.client.decisions.create(**ASKED | fields)
    body = raised.value.response.json()["error"]
    assert (body["type"], body["param"], body["code"]) == ("BadRequestError", param, 400)


def test_a_model_that_is_not_there_is_a_404(tiny):
    with pytest.raises(openai.NotFoundError, match="'gpt' does not exist"):
        tiny.client.decisions.create(**ASKED | {"model": "gpt"})


def test_labels_that_the_model_rules_out_are_a_422(engine_of, serve):
    class Shut(Double):
        def wish(self, *_):
            return torch.full((16, V), -torch.inf).index_fill_(1, torch.tensor([300]), 0.0)

    with (
        serve(engine_of(Shut(V))) as served,
        pytest.raises(
            openai.UnprocessableEntityError, match=r"questions\[0\]: the model gives"
        ) as e,
    ):
        served.client.decisions.create(**ASKED)
    assert e.value.response.json()["error"]["param"] == "questions"


def test_an_engine_that_writes_left_to_right_says_so(engine_of, serve):
    with (
        serve(engine_of(Random(V, seed=1), decoding=Autoregressive())) as served,
        pytest.raises(openai.BadRequestError, match="this engine writes left to right"),
    ):
        served.client.decisions.create(**ASKED)


def test_a_question_wants_a_key_like_any_other(serve_random):
    with serve_random(api_keys=("k",)) as served:
        assert served.http.post("/v1/decisions", json=ASKED).status_code == 401
        assert served.client.decisions.create(**ASKED).answers


def test_a_full_queue_is_a_429_and_a_decision_counts_once(engine_of, tokens_of, serve):
    model = Gated(tokens_of("yes<turn|>"))
    with (
        serve(engine_of(model, slots=1), slots=1, max_queue=1) as served,
        ThreadPoolExecutor(2) as pool,
    ):
        ask = served.http.post
        asked = [pool.submit(ask, "/v1/decisions", json=PREDICATES) for _ in range(2)]
        wait_until(lambda: len(served.server.engine._streams) == 2)
        refused = ask("/v1/decisions", json=PREDICATES)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        model.open.set()
        assert [len(one.result().json()["answers"]) for one in asked] == [12, 12]


def test_what_was_asked_before_a_signal_is_answered_and_the_rest_is_a_503(
    engine_of, tokens_of, serve
):
    model = Gated(tokens_of("yes<turn|>"))
    with serve(engine_of(model, slots=1), slots=1) as served, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(served.http.post, "/v1/decisions", json=PREDICATES)
        wait_until(lambda: served.server.engine._streams)
        served.running.handle_exit(15, None)
        wait_until(lambda: served.server.engine.problem is not None)
        refused = served.http.post("/v1/decisions", json=PREDICATES)
        assert refused.status_code == 503
        assert "shutting down" in refused.json()["error"]["message"]
        model.open.set()
        assert len(asked.result().json()["answers"]) == 12


def test_a_client_that_goes_away_takes_its_questions_with_it(engine_of, tokens_of, serve):
    model = Gated(tokens_of("yes<turn|>"))
    engine = engine_of(model, slots=2)
    with serve(engine, slots=2) as served:
        many = PREDICATES | {"model": "tiny", "questions": PREDICATES["questions"] * 9}
        with hanging_up(served.url, "/v1/decisions", many):
            wait_until(lambda: served.engine.busy)
        wait_until(lambda: not served.server.engine.busy)
        model.open.set()
        wait_until(lambda: not engine.busy)
        assert sorted(engine._scheduler._free) == [0, 1]
        assert metrics(served)["dlm:request_success_total", "abort"] == 1


def test_from_python_a_decision_is_a_stream_of_one_event(engine_of):
    import asyncio

    from dlm.serving.async_engine import AsyncEngine

    asked = Decision(request=Request(prompt=TEXT), questions=[{"type": "predicate"}])

    async def main():
        served = AsyncEngine(engine_of(Random(V, seed=1), slots=2), 2)
        events = [event async for event in served.stream(asked)]
        await served.close()
        return events

    (event,) = asyncio.run(main())
    assert 0 < event.answers[0].probability < 1
