"""Operation: metrics, health, queues, draining, clients that disconnect, and tokens."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from doubles import Dreamer
from gated import Gated
from hanging_up import hanging_up
from prometheus_client.parser import text_string_to_metric_families
from values import V
from waiting import wait_until

from dlm import DlmError
from dlm.serving.service import app_of
from dlm.serving.settings import Settings

HI = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 64}
DECISION = {
    "model": "tiny",
    "input": "Olga Lopez is 61 years old.",
    "questions": [{"type": "predicate", "instructions": "Is she over 60?"}] * 12,
}
CHAT, DECISIONS = ("/v1/chat/completions", HI), ("/v1/decisions", DECISION)
by_route = pytest.mark.parametrize(("path", "body"), [CHAT, DECISIONS], ids=["chat", "decision"])


def read_metrics(served):
    """Return values by name and reason of an end, without buckets of histograms."""
    text = served.http.get("/metrics").text
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    assert all(sample.labels["model_name"] == "tiny" for sample in samples)
    return {
        (s.name, s.labels.get("finished_reason")): s.value for s in samples if "le" not in s.labels
    }


@pytest.fixture
def gate(tokens_of):
    """A model that answers "yes" once it is opened."""
    return Gated(tokens_of("yes<turn|>"))


def test_metrics_count_requests_under_the_names_that_dashboards_read(engine_of, tokens_of, serve):
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


def test_metrics_count_decisions_and_their_questions(serve_random):
    with serve_random() as served:
        before = read_metrics(served)
        usage = served.client.decisions.create(**DECISION).usage
        after = read_metrics(served)
    rise = {key: after[key] - before[key] for key in before}
    assert rise["dlm:request_success_total", "decided"] == 1
    assert rise["dlm:questions_total", None] == 12
    assert rise["dlm:diffusion_num_denoising_steps_total", None] == 12
    assert rise["dlm:prompt_tokens_total", None] == usage.input_tokens
    assert rise["dlm:generation_tokens_total", None] == 0
    assert rise["dlm:e2e_request_latency_seconds_count", None] == 1
    assert rise["dlm:request_queue_time_seconds_count", None] == 1


def test_the_gauge_of_running_requests_counts_those_in_slots(engine_of, gate, serve):
    with serve(engine_of(gate, slots=1), slots=1) as served, ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(served.client.chat.completions.create, **HI) for _ in range(3)]
        wait_until(lambda: served.in_flight() == 3)
        wait_until(lambda: read_metrics(served)["dlm:num_requests_running", None] == 1)
        gate.open.set()
        wait_until(lambda: all(answer.done() for answer in answers))


def test_the_cache_s_share_rises_while_a_request_runs(tiny):
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(tiny.client.chat.completions.create, **HI | {"temperature": 2})
        wait_until(lambda: tiny.engine.occupancy.cache > 0 or answer.done())
        assert not answer.done()
    assert tiny.engine.occupancy.cache == 0


@by_route
def test_a_full_queue_is_a_429_with_the_time_to_retry(engine_of, gate, serve, path, body):
    settings = {"slots": 1, "max_queue": 1, "retry_after": 7}
    with serve(engine_of(gate, slots=1), **settings) as served, ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(served.http.post, path, json=body) for _ in range(2)]
        wait_until(lambda: served.in_flight() == 2)  # a decision counts once
        refused = served.http.post(path, json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
        assert refused.json()["error"]["type"] == "RateLimitError"
        assert "try again later" in refused.json()["error"]["message"]
        gate.open.set()
        assert [answer.result().status_code for answer in answers] == [200, 200]


@pytest.mark.parametrize(
    ("path", "body"),
    [CHAT, (CHAT[0], HI | {"stream": True}), DECISIONS],
    ids=["chat", "streamed chat", "decision"],
)
def test_a_client_that_hangs_up_gives_its_slots_back(engine_of, tokens_of, serve, path, body):
    model = Gated(tokens_of("word " * 30), canvas_length=4)
    with serve(engine_of(model, slots=1), slots=1, max_queue=0) as served:
        with hanging_up(served.url, path, body):
            wait_until(lambda: served.engine.busy)
        wait_until(lambda: not served.server.engine.busy)  # before anything was sent
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
        assert served.client.chat.completions.create(**HI).usage.completion_tokens > 0


def test_a_stream_without_events_sends_comments_that_keep_it_alive(engine_of, gate, serve):
    with (
        serve(engine_of(gate, slots=1), keep_alive=0.05) as served,
        served.http.stream("POST", "/v1/chat/completions", json=HI | {"stream": True}) as answer,
    ):
        lines = (line for line in answer.iter_lines() if line)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert json.loads(next(lines).removeprefix("data: "))["choices"][0]["delta"]["role"]
        assert [next(lines) for _ in range(2)] == [": keep-alive"] * 2
        gate.open.set()
        rest = list(lines)
    chunks = [json.loads(one[6:]) for one in rest if one.startswith("data: {")]
    assert chunks[0]["choices"][0]["delta"] == {"content": "yes"}
    assert rest[-1] == "data: [DONE]"


@by_route
def test_a_signal_lets_running_requests_finish_and_refuses_new_ones(
    engine_of, gate, serve, path, body
):
    with serve(engine_of(gate, slots=1), slots=1) as served, ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(served.http.post, path, json=body) for _ in range(2)]
        wait_until(lambda: served.in_flight() == 2)
        served.running.handle_exit(15, None)
        wait_until(lambda: served.server.engine.problem is not None)
        refused = served.http.post(path, json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "shutting down" in refused.json()["error"]["message"]
        assert served.http.get("/health").status_code == 503
        gate.open.set()
        assert [answer.result().status_code for answer in answers] == [200, 200]
        wait_until(lambda: served.running.should_exit)


@pytest.mark.parametrize("signals", [1, 2])
def test_requests_end_when_the_time_to_drain_is_over_or_at_a_second_signal(
    engine_of, gate, serve, signals
):
    settings = {"shutdown_timeout": 0.0} if signals == 1 else {}
    with (
        serve(engine_of(gate, slots=1), slots=1, **settings) as served,
        ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(served.client.chat.completions.create, **HI)
        wait_until(lambda: served.in_flight() == 1)
        served.running.handle_exit(15, None)
        if signals == 2:
            wait_until(lambda: served.http.get("/health").status_code == 503)
            assert not answer.done()
            served.running.handle_exit(15, None)
        with pytest.raises(openai.InternalServerError, match="was shut down"):
            answer.result()
        wait_until(lambda: served.running.should_exit)
        gate.open.set()


@pytest.mark.anyio
async def test_the_garbage_collector_is_tuned_once_all_is_loaded(engine_of, monkeypatch):
    calls = []
    monkeypatch.setattr("dlm.serving.service.tune_process", lambda: calls.append(1))
    app, service = app_of(engine_of(Dreamer(V, seed=1)), Settings())
    async with service.serving(app):
        assert calls == [1]
    assert calls == [1]


def test_tokens_are_decoded_to_the_prompt_they_came_from(tiny):
    body = {"model": "tiny", "prompt": "Hello <turn|> é", "return_token_strs": True}
    answer = tiny.http.post("/tokenize", json=body).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert (answer["tokens"][0], answer["max_model_len"]) == (2, 2048)
    assert 106 in answer["tokens"]
    back = tiny.http.post("/detokenize", json={"tokens": answer["tokens"]}).json()
    assert back == {"prompt": "<bos>Hello <turn|> é"}


def test_a_conversation_is_tokenized_as_it_is_served(serve_random):
    with serve_random() as served:
        chat = served.http.post("/tokenize", json={"messages": HI["messages"]}).json()
        usage = served.client.chat.completions.create(**HI | {"max_tokens": 4}).usage
    assert chat["count"] == usage.prompt_tokens
    assert chat["token_strs"] is None


def test_the_version_is_that_of_the_package(tiny):
    assert set(tiny.http.get("/version").json()) == {"version"}


def test_request_ids_are_echoed_or_made(serve_random):
    with serve_random(request_ids=True) as served:
        get = served.http.get
        assert get("/health", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
        made = {get("/nothing").headers["x-request-id"] for _ in range(3)}
        assert len(made) == 3
        strange = get("/health", headers={"X-Request-Id": "a b" * 100}).headers["x-request-id"]
        assert " " not in strange


def test_preflight_requests_of_allowed_origins_need_no_key(serve_random):
    origin = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    allowed = ("https://a.example",)
    with serve_random(allowed_origins=allowed, api_keys=("k",)) as served:
        answer = served.http.options("/v1/chat/completions", headers=origin)
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        other = served.http.options("/v1/models", headers=origin | {"Origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


def test_a_client_may_name_its_request(serve_random):
    with serve_random() as served:
        answer = served.client.chat.completions.create(
            **HI | {"max_tokens": 4}, extra_body={"request_id": "mine"}
        )
    assert answer.id == "chatcmpl-mine"


def test_clients_at_once_get_the_answers_that_each_gets_alone(engine_of, serve):
    def ask(seed):
        more = {"seed": seed, "n": 1 + seed % 2, "temperature": 1.0, "max_tokens": 24}
        if seed % 3 == 0:
            more |= {"response_format": {"type": "json_object"}}
        chunks = served.client.chat.completions.create(**HI | more, stream=True)
        return "".join(
            c.delta.content or "" for chunk in chunks for c in chunk.choices if not c.index
        )

    def decide(seed):
        return served.http.post("/v1/decisions", json=DECISION | {"seed": seed}).json()["answers"]

    with serve(engine_of(Dreamer(V, seed=1), slots=4)) as served, ThreadPoolExecutor(8) as pool:
        alone = [ask(seed) for seed in range(6)], [decide(seed) for seed in range(2)]
        texts, answers = pool.map(ask, range(6)), pool.map(decide, range(2))
        assert (list(texts), list(answers)) == alone


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"slots": 0}, "slots must be at least 1, got 0"),
        ({"keep_alive": 0}, "keep_alive must be more than 0 seconds, got 0"),
        ({"names": ()}, "names must have at least one name"),
        ({"api_keys": ("a", "")}, "api_keys must not have an empty key"),
        (
            {"api_keys": ("a", "clé")},
            r"api_keys\[1\] must be printable ASCII",
        ),
        ({"api_keys": ("a\n",)}, r"api_keys\[0\] must be printable ASCII"),
        ({"api_keys": (" a",)}, r"api_keys\[0\] must be printable ASCII"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields, problem):
    with pytest.raises(DlmError, match=problem):
        Settings(**fields)


def test_the_page_loads_from_and_sends_to_its_own_server_alone(tiny):
    page = tiny.http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"].split("; ")
    rules = dict(rule.split(" ", 1) for rule in policy)
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["connect-src"] == "'self'"
    parts = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    own = [part for part in parts if re.fullmatch(r"page/\w+\.(css|js)", part)]
    assert [part for part in parts if part not in own] == [parts[0]]
    assert parts[0].startswith("data:image/svg+xml,")
    texts = {part: tiny.http.get(f"/{part}").text for part in own}
    assert not [part for part, text in texts.items() if re.search(r"\burl\(|https?:|@import", text)]
    body = HI | {"stream": True, "reasoning_effort": None, "structured_outputs": None}
    options = {"stream_options": {"include_usage": True, "drafts": True}}
    stream = tiny.http.post("/v1/chat/completions", json=body | options).text
    drafts = [json.loads(part[6:]) for part in stream.split("\n\n") if '"draft"' in part]
    used = set(re.findall(r"\bdraft\.(\w+)", "".join(texts.values())))
    assert len(used) > 4
    assert all(used <= chunk["draft"].keys() for chunk in drafts)
