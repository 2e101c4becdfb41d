"""Two replicas at one address, as operators start them, until a signal ends all."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import httpx2
import openai
import pytest
from hanging_up import hanging_up
from processes import descendants, is_running, named
from prometheus_client.parser import text_string_to_metric_families
from waiting import PATIENCE, wait_until

pytest.importorskip("ray")
pytestmark = pytest.mark.exhaustive  # a cluster and two replicas take most of a minute to start

SCRIPT = Path(__file__).parents[3] / "scripts" / "serve.py"
REPLICA = "ray::ServeReplica:dlm:engines"
LONG = {"max_tokens": 400, "response_format": {"type": "json_object"}, "temperature": 2}
STREAMED = LONG | {"stream": True}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    log = tmp_path_factory.mktemp("served") / "stderr"
    port = 20000 + os.getpid() % 12000  # below those that a system assigns
    flags = ["--replicas", "2", "--slots", "2", "--port", str(port), "--log-level", "error"]
    flags += ["--shutdown-timeout", str(PATIENCE)]
    command = [sys.executable, str(SCRIPT), *flags]
    environment = os.environ | {"DLM_API_KEYS": "secret"}
    url = f"http://127.0.0.1:{port}"
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stderr=stderr, env=environment) as process,
    ):
        with (
            httpx2.Client(base_url=url, timeout=PATIENCE) as http,
            openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as client,
        ):
            wait_until(lambda: process.poll() is not None or is_well(http))
            assert process.poll() is None, log.read_text()
            one = SimpleNamespace(process=process, http=http, client=client, url=url)
            wait_until(lambda: len(counted(one, "num_requests_running")) == 2)
            yield one
        process.kill()


def is_well(http):
    with suppress(httpx2.TransportError):
        return http.get("/health").status_code == 200
    return False


def counted(served, name, **labels):
    """Return the values of samples that have these labels, by replica."""
    found = {}
    for family in text_string_to_metric_families(served.http.get("/metrics").text):
        for sample in family.samples:
            if sample.name == f"dlm:{name}" and labels.items() <= sample.labels.items():
                found[sample.labels["replica"]] = sample.value
    return found


def ask(served, text, **more):
    """Return the completion, or the stream if `more` has `stream`."""
    messages = [{"role": "user", "content": text}]
    fields = {"model": "tiny", "messages": messages, "max_tokens": 16} | more
    return served.client.chat.completions.create(**fields)


def until(stop, work):
    """Repeat `work` until `stop` is set; return the last result."""
    while True:
        found = work()
        if stop.is_set():
            return found


def test_prompts_that_begin_alike_go_to_the_same_replica(served):
    with pytest.raises(openai.AuthenticationError):
        served.client.with_options(api_key="wrong").models.list()
    queries, i = {}, 0
    while len(queries) < 2 or min(queries.values()) == 0:  # until both replicas have had some
        i += 1
        assert i < 30
        opening = [{"role": "user", "content": f"Conversation {i}. " + "So it began. " * 20}]
        first = ask(served, "", messages=opening)
        later = [{"role": "assistant", "content": "Go on."}, {"role": "user", "content": "And?"}]
        second = ask(served, "", messages=opening + later)
        shared = second.usage.prompt_tokens_details.cached_tokens
        assert shared >= first.usage.prompt_tokens - 32  # all but the last pages
        queries = counted(served, "prefix_cache_queries_total")
    hits = counted(served, "prefix_cache_hits_total")
    for replica, tokens in queries.items():
        assert hits[replica] > tokens / 3  # of two prompts, nearly the first


def test_a_client_that_hangs_up_cancels_its_request(served):
    def aborted():
        return sum(counted(served, "request_success_total", finished_reason="abort").values())

    def running():
        return sum(counted(served, "num_requests_running").values())

    body = LONG | {"model": "tiny", "messages": [{"role": "user", "content": "nobody waits"}]}
    key = {"Authorization": "Bearer secret"}
    with hanging_up(served.url, "/v1/chat/completions", body | {"n": 4}, **key):
        wait_until(lambda: running() > 0)
    wait_until(lambda: aborted() > 0)
    before = aborted()
    stream = ask(served, "nobody reads", n=4, stream=True, **LONG)
    next(iter(stream))
    stream.close()
    wait_until(lambda: aborted() > before)
    wait_until(lambda: running() == 0)


def test_requests_of_a_killed_replica_are_answered_by_the_other(served):
    pids = named(served.process.pid, REPLICA)
    assert len(pids) == 2
    killed = Event()
    with ThreadPoolExecutor(16) as pool:
        whole = [
            pool.submit(until, killed, partial(ask, served, f"number {i}", **LONG))
            for i in range(6)
        ]
        streams = [
            pool.submit(until, killed, lambda i=i: list(ask(served, f"stream {i}", **STREAMED)))
            for i in range(3)
        ]
        try:
            wait_until(lambda: min(counted(served, "num_requests_running").values()) == 2)
            os.kill(pids[0], signal.SIGKILL)
        finally:
            killed.set()
        for i in range(4):
            assert ask(served, f"later {i}").choices[0].finish_reason in ("stop", "length")
        for one in whole:
            assert json.loads(one.result().choices[0].message.content) is not None
    for one in streams:
        if (problem := one.exception()) is None:
            assert one.result()[-1].choices[0].finish_reason in ("stop", "length")
        else:  # it had begun
            assert str(problem) == "the replica that was answering has ended"
    assert not is_running(pids[0])


def test_a_signal_ends_all_processes_after_the_running_requests(served):
    processes = [served.process.pid, *(pid for pid, _ in descendants(served.process.pid))]
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(ask, served, f"last {i}", **LONG) for i in range(4)]
        wait_until(lambda: sum(counted(served, "num_requests_running").values()) >= 2)
        served.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_well(served.http))
        with pytest.raises(openai.InternalServerError, match="shutting down"):
            ask(served, "too late")
        for one in running:
            assert one.result().choices[0].finish_reason in ("stop", "length")
    assert served.process.wait(PATIENCE) == 0
    wait_until(lambda: not any(map(is_running, processes)))
