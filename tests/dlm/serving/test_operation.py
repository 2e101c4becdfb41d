"""What operators count on: metrics, health, draining, proxies, and clients that go away."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from doubles import Random
from gated import Gated
from hanging_up import hanging_up
from prometheus_client.parser import text_string_to_metric_families
from values import V
from waiting import wait_until

from dlm import DlmError
from dlm.serving.guard import Settings

HI = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 64}


def read_metrics(served):
    """Values by name and labels; a histogram's sum and count among them."""
    text = served.http.get("/metrics").text
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    assert all(sample.labels["model_name"] == "tiny" for sample in samples)
    return {
        (s.name, s.labels.get("finished_reason")): s.value for s in samples if "le" not in s.labels
    }


def test_metrics_have_the_names_that_dashboards_read_and_count_what_happened(
    engine_of, tokens_of, serve
):
    model = Gated(tokens_of("hi there, this is more than a canvas of words<turn|>"))
    model.open.set()
    with serve(engine_of(model, slots=4)) as served:
        before = read_metrics(served)
        answers = [served.client.chat.completions.create(**HI) for _ in range(3)]
        answers.append(served.client.chat.completions.create(**HI | {"max_tokens": 4}))
        with pytest.raises(openai.BadRequestError):
            served.client.chat.completions.create(**HI | {"temperature": 9})
        after = read_metrics(served)
    assert before.keys() == after.keys()

    def rise(name, reason=None):
        return after[f"dlm:{name}", reason] - before[f"dlm:{name}", reason]

    usage = [answer.usage for answer in answers]
    assert rise("prompt_tokens_total") == sum(u.prompt_tokens for u in usage)
    assert rise("generation_tokens_total") == sum(u.completion_tokens for u in usage)
    assert rise("diffusion_num_committed_tokens_total") == rise("generation_tokens_total")
    assert rise("diffusion_num_denoising_steps_total") >= 7
    assert rise("diffusion_num_canvas_positions_total") % 16 == 0
    assert rise("prefix_cache_queries_total") == rise("prompt_tokens_total")
    assert (rise("request_success_total", "stop"), rise("request_success_total", "length")) == (
        3,
        1,
    )
    for name in (
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "tokens_per_pass",
    ):
        assert rise(f"{name}_count") == 4
        assert rise(f"{name}_sum") > 0
    assert rise("inter_token_latency_seconds_count") >= 3
    parts = sum(rise(f"request_{p}_time_seconds_sum") for p in ("queue", "prefill", "decode"))
    assert parts == pytest.approx(rise("e2e_request_latency_seconds_sum"), rel=1e-6)
    for name in ("repairs", "pins", "rollbacks", "compile_seconds", "grammar_seconds"):
        assert rise(f"{name}_total") >= 0
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert after[f"dlm:{name}", None] == 0


def test_gauges_tell_who_runs_and_who_waits(engine_of, tokens_of, serve):
    model = Gated(tokens_of("hi<turn|>"))
    with serve(engine_of(model, slots=1), slots=1) as served, ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(served.client.chat.completions.create, **HI) for _ in range(3)]
        wait_until(lambda: len(served.server.engine._streams) == 3)
        wait_until(lambda: read_metrics(served)["dlm:num_requests_running", None] == 1)
        model.open.set()
        wait_until(lambda: all(one.done() for one in asked))


def test_the_cache_s_share_rises_while_a_request_runs(tiny):
    def longer():
        more = {"max_tokens": 1024, "temperature": 2, "response_format": {"type": "json_object"}}
        return tiny.client.chat.completions.create(**HI | more)

    seen = set()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(longer)
        while not asked.done():
            seen.add(tiny.engine.occupancy.cache > 0)
    assert True in seen
    assert tiny.engine.occupancy.cache == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_gives_its_slot_back(engine_of, tokens_of, serve, stream):
    """At once, although nothing was said to it, nor was about to be."""
    model = Gated(tokens_of("word " * 30), canvas_length=4)
    with serve(engine_of(model, slots=1), slots=1, max_queue=0) as served:
        with hanging_up(served.url, "/v1/chat/completions", HI | {"stream": stream}):
            wait_until(lambda: served.engine.busy)
        wait_until(lambda: not served.server.engine.busy)
        model.open.set()
        wait_until(lambda: not served.engine.busy)
        assert read_metrics(served)["dlm:request_success_total", "abort"] == 1
        answer = served.client.chat.completions.create(**HI)
        assert answer.choices[0].message.content.startswith("word")


def test_a_client_that_hangs_up_in_mid_stream_gives_its_slot_back(engine_of, tokens_of, serve):
    model = Gated(tokens_of("word " * 60), canvas_length=4)
    model.open.set()
    with serve(engine_of(model, slots=1), slots=1, max_queue=0) as served:
        for _ in range(3):
            stream = served.client.chat.completions.create(**HI, stream=True)
            next(iter(stream))
            stream.close()
            wait_until(lambda: not served.server.engine.busy)
        wait_until(lambda: not served.engine.busy)
        assert served.engine._scheduler._free == [0]


def test_a_stream_says_that_it_lives_while_nothing_happens(engine_of, tokens_of, serve):
    model = Gated(tokens_of("hi<turn|>"))
    with (
        serve(engine_of(model, slots=1), keep_alive=0.05) as served,
        served.http.stream("POST", "/v1/chat/completions", json=HI | {"stream": True}) as answer,
    ):
        lines = (line for line in answer.iter_lines() if line)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert json.loads(next(lines).removeprefix("data: "))["choices"][0]["delta"]["role"]
        assert [next(lines) for _ in range(2)] == [": keep-alive"] * 2
        model.open.set()
        rest = list(lines)
    said = [json.loads(one[6:]) for one in rest if one.startswith("data: {")]
    assert said[0]["choices"][0]["delta"] == {"content": "hi"}
    assert rest[-1] == "data: [DONE]"


def test_a_signal_lets_what_runs_finish_and_refuses_the_rest(engine_of, tokens_of, serve):
    model = Gated(tokens_of("hi<turn|>"))
    with serve(engine_of(model, slots=1), slots=1) as served, ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(served.client.chat.completions.create, **HI) for _ in range(2)]
        wait_until(lambda: len(served.server.engine._streams) == 2)
        served.running.handle_exit(15, None)
        wait_until(lambda: served.server.engine.problem is not None)
        with pytest.raises(openai.InternalServerError, match="shutting down") as raised:
            served.client.chat.completions.create(**HI)
        assert raised.value.status_code == 503
        assert raised.value.response.headers["retry-after"] == "1"
        assert served.http.get("/health").status_code == 503
        model.open.set()
        assert [one.result().choices[0].message.content for one in asked] == ["hi", "hi"]
        wait_until(lambda: served.running.should_exit)


def test_without_time_to_drain_requests_are_ended_and_told_so(engine_of, tokens_of, serve):
    model = Gated(tokens_of("hi<turn|>"))
    with (
        serve(engine_of(model, slots=1), slots=1, shutdown_timeout=0.0) as served,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(served.client.chat.completions.create, **HI)
        wait_until(lambda: served.server.engine._streams)
        served.running.handle_exit(15, None)
        with pytest.raises(openai.InternalServerError, match="was shut down"):
            asked.result()
        model.open.set()


def test_a_second_signal_ends_what_the_first_lets_finish(engine_of, tokens_of, serve):
    model = Gated(tokens_of("hi<turn|>"))
    with serve(engine_of(model, slots=1), slots=1) as served, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(served.client.chat.completions.create, **HI)
        wait_until(lambda: served.server.engine._streams)
        served.running.handle_exit(15, None)
        wait_until(lambda: served.http.get("/health").status_code == 503)
        assert not asked.done()
        served.running.handle_exit(15, None)
        with pytest.raises(openai.InternalServerError, match="was shut down"):
            asked.result()
        wait_until(lambda: served.running.should_exit)
        model.open.set()


def test_the_collector_is_told_once_that_all_is_loaded(engine_of, monkeypatch):
    import asyncio

    from dlm.serving.app import app_of

    called = []
    monkeypatch.setattr("dlm.serving.app.tune_garbage_collector", lambda: called.append(1))
    app, service = app_of(engine_of(Random(V, seed=1)), Settings())

    async def main():
        async with service.serving(app):
            assert called == [1]

    asyncio.run(main())
    assert called == [1]


def test_tokens_go_there_and_back(tiny):
    asked = {"model": "tiny", "prompt": "Hello <turn|> é", "return_token_strs": True}
    answer = tiny.http.post("/tokenize", json=asked).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert (answer["tokens"][0], 106 in answer["tokens"], answer["max_model_len"]) == (
        2,
        True,
        2048,
    )
    back = tiny.http.post("/detokenize", json={"tokens": answer["tokens"]}).json()
    assert back == {"prompt": "<bos>Hello <turn|> é"}


def test_a_conversation_is_tokenized_as_it_is_served(tiny):
    chat = tiny.http.post("/tokenize", json={"messages": HI["messages"]}).json()
    usage = tiny.client.chat.completions.create(**HI).usage
    assert chat["count"] == usage.prompt_tokens
    assert chat["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        ("/tokenize", {}, "prompt is missing"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt is unknown here"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": False}, "add_special_tokens is false"),
        ("/detokenize", {"tokens": [99999]}, r"tokens[0] is 99999: it takes 0 to 1535"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0] is 'a'"),
        ("/tokenize", {"prompt": "a", "model": "b"}, "'b' does not exist here"),
    ],
)
def test_what_cannot_be_tokenized_says_why(tiny, path, body, problem):
    answer = tiny.http.post(path, json=body)
    assert answer.status_code in (400, 404)
    assert problem in answer.json()["error"]["message"]


def test_the_version_is_that_of_the_package(tiny):
    assert set(tiny.http.get("/version").json()) == {"version"}


def test_request_ids_are_echoed_or_made(engine_of, serve):
    with serve(engine_of(Random(V, seed=1)), request_ids=True) as served:
        get = served.http.get
        assert get("/health", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
        made = {get("/nothing").headers["x-request-id"] for _ in range(3)}
        assert len(made) == 3
        strange = get("/health", headers={"X-Request-Id": "a b" * 100}).headers["x-request-id"]
        assert " " not in strange


def test_pages_of_allowed_origins_may_ask_without_a_key_for_the_question(engine_of, serve):
    origin = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    allowed = ("https://a.example",)
    with serve(engine_of(Random(V, seed=1)), allowed_origins=allowed, api_keys=("k",)) as served:
        answer = served.http.options("/v1/chat/completions", headers=origin)
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        other = served.http.options("/v1/models", headers=origin | {"Origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


def test_a_client_may_name_its_request(tiny):
    answer = tiny.client.chat.completions.create(**HI, extra_body={"request_id": "mine"})
    assert answer.id == "chatcmpl-mine"


def test_many_clients_at_once_each_get_what_they_get_alone(tiny):
    def ask(seed):
        asked = HI | {"seed": seed, "n": 1 + seed % 2, "temperature": 1.0}
        if seed % 3 == 0:
            asked |= {"response_format": {"type": "json_object"}}
        chunks = tiny.client.chat.completions.create(**asked, stream=True)
        return "".join(
            c.delta.content or "" for chunk in chunks for c in chunk.choices if not c.index
        )

    alone = [ask(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(6))) == alone


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"slots": 0}, "slots is 0: it takes at least 1"),
        ({"keep_alive": 0}, "keep_alive is 0: it takes more than 0 seconds"),
        ({"names": ()}, "names holds no name"),
        ({"api_keys": ("a", "")}, "api_keys holds an empty key"),
        (
            {"api_keys": ("a", "clé")},
            r"api_keys\[1\] cannot be sent in a header: it takes printable ASCII",
        ),
        ({"api_keys": ("a\n",)}, r"api_keys\[0\] cannot be sent in a header"),
        ({"api_keys": (" a",)}, r"api_keys\[0\] cannot be sent in a header"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields, problem):
    with pytest.raises(DlmError, match=problem):
        Settings(**fields)


def test_the_page_asks_this_server_and_nobody_else(tiny):
    page = tiny.http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"].split("; ")
    rules = dict(rule.split(" ", 1) for rule in policy)
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert not re.findall(r"(?:src|href|url)\s*[=(]|//\w", page.text)
    asked = HI | {"stream": True, "reasoning_effort": None, "structured_outputs": None}
    options = {"stream_options": {"include_usage": True, "drafts": True}}
    stream = tiny.http.post("/v1/chat/completions", json=asked | options).text
    drafts = [json.loads(part[6:]) for part in stream.split("\n\n") if '"draft"' in part]
    used = set(re.findall(r"draft\.(\w+)", page.text)) - {"tokens"}
    assert used
    assert all(used <= chunk["draft"].keys() for chunk in drafts)
