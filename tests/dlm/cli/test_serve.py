"""The server as operators start it: a process, its flags, and its end."""

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx2
import openai
import pytest
from exhaustive import by_default
from processes import free_port
from waiting import PATIENCE

from dlm import Policy
from dlm.cli import options, serve

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, str(ROOT / "scripts" / "serve.py"), "--log-level", "error"]
HI = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@contextmanager
def started(*flags, http, there=ROOT, **environment):
    """Start the server and wait until the file `there` exists and the server is healthy."""
    more = os.environ | environment
    process = subprocess.Popen([*COMMAND, *flags], stderr=subprocess.PIPE, text=True, env=more)
    try:
        end = time.monotonic() + PATIENCE
        while True:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.05)
            with suppress(httpx2.TransportError):
                if there.exists() and http.get("/health").status_code == 200:
                    break
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)
        process.stderr.close()


def test_a_signal_ends_the_process_once_its_requests_are_finished():
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    flags = "--port", str(port), "--slots", "1", "--shutdown-timeout", str(PATIENCE)
    long = HI | {"max_tokens": 200, "response_format": {"type": "json_object"}, "temperature": 2}
    with (
        httpx2.Client(base_url=url, timeout=PATIENCE) as http,
        started(*flags, http=http, DLM_API_KEYS="one two") as process,
        openai.OpenAI(base_url=f"{url}/v1", api_key="two", max_retries=0) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="three").models.list()
        running = [pool.submit(client.chat.completions.create, **long) for _ in range(3)]
        while 'waiting{model_name="tiny"} 2.0' not in http.get("/metrics").text:
            assert not any(one.done() for one in running)
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        while http.get("/health").status_code == 200:
            time.sleep(0.01)
        with pytest.raises(openai.InternalServerError, match="shutting down") as raised:
            client.chat.completions.create(**HI)
        assert raised.value.status_code == 503
        for one in running:
            assert one.result().choices[0].finish_reason in ("stop", "length")
        process.wait(PATIENCE)
        assert process.returncode == 0


@pytest.mark.exhaustive
def test_a_unix_socket_takes_the_place_of_a_port(tmp_path):
    path = tmp_path / "socket"
    flags = ("--uds", str(path), "--served-model-name", "a", "b", "--root-path", "/llm")
    transport = httpx2.HTTPTransport(uds=str(path))
    with (
        httpx2.Client(transport=transport, base_url="http://server", timeout=PATIENCE) as http,
        started(*flags, http=http, there=path),
    ):
        names = [model["id"] for model in http.get("/v1/models").json()["data"]]
        assert names == ["a", "b"]
        assert (
            http.get("/llm/v1/models").status_code == 200
        )  # a proxy may leave the path's prefix there
        answer = http.post("/v1/completions", json={"prompt": "hi", "model": "b"}).json()
        assert answer["model"] == "b"
        assert str(ROOT) not in str(http.post("/v1/completions", json={"prompt": 3}).json())


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 without --api-key: everybody could use the model"),
        (["--slots", "0"], "slots must be at least 1, got 0"),
        (["--port", "0", "--model", "/nowhere"], "no model directory at /nowhere"),
        (["--policy", "some"], "argument --policy: invalid choice: 'some'"),
        (["--shutdown-timeout", "-1"], "--shutdown-timeout must be at least 0 seconds, got -1"),
        (["--api-key", ""], "api_keys must not have an empty key"),
        (["--port", "99999"], "--port must be 0 to 65535, got 99999"),
        (["--port", "-1"], "--port must be 0 to 65535, got -1"),
        (["--max-queue", "-1"], "max_queue must be at least 0, got -1"),
        (["--uds", ""], "--uds must be the path of a socket, got an empty text"),
        (["--ssl-keyfile", "a"], "--ssl-keyfile must have --ssl-certfile beside it"),
        (["--ssl-ca-certs", "a"], "--ssl-ca-certs without --ssl-certfile"),
        (
            ["--replicas", "1", "--ssl-certfile", "a", "--ssl-ca-certs", "a"],
            "--ssl-ca-certs with --replicas: Ray Serve asks no client for a certificate",
        ),
        (["--replicas", "0"], "--replicas must be at least 1, got 0"),
        (["--ray"], "--ray without --replicas: say how many engines there are to be"),
        (["--max-header-bytes", "0"], "--max-header-bytes must be more than 0, got 0"),
        (["--header-timeout", "0"], "--header-timeout must be more than 0, got 0"),
        (["--max-connections", "9999999"], "max_connections must be at most "),
        (
            ["--max-connections-per-address", "-1"],
            "--max-connections-per-address must be more than 0, got -1",
        ),
        (
            ["--replicas", "2", "--max-connections", "9"],
            "--max-connections with --replicas: Ray Serve's proxies know no such bound",
        ),
        (
            ["--slots", "2", "--reserved-slots", "2"],
            "reserved_slots must be 0 to 1, fewer than the slots, got 2",
        ),
        (["--allowed-hosts", "a:80"], "allowed_hosts[0] must be the name of a host"),
        (["--replicas", "2", "--uds", "a"], "--uds with --replicas: Ray Serve listens on a host"),
        (
            ["--stored-files", "a", "--stored-file-bytes", "0"],
            "--stored-files with --replicas or --stored-file-bytes 0: no file is stored there",
        ),
        (["--stored-files", "/dev/null"], "the directory of files must be writable"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(refusal_of, flags, problem):
    assert problem in refusal_of(serve, *flags)


def flags_of(monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["serve.py", *flags])
    monkeypatch.delenv("DLM_API_KEYS", raising=False)
    return serve.arguments()


@pytest.fixture
def configured(monkeypatch):
    """Return the options of uvicorn for some flags."""
    uvicorn = pytest.importorskip("uvicorn")
    config = {}

    def double(app, **options):
        config.update(options)
        raise InterruptedError

    def read(*flags):
        with pytest.raises(InterruptedError):
            serve.serve_here(flags_of(monkeypatch, *flags), None)
        return config

    monkeypatch.setattr(uvicorn, "Config", double)
    monkeypatch.setattr("dlm.serving.service.app_of", lambda *_: (None, None))
    monkeypatch.setattr(serve, "loading_of", lambda _: None)
    monkeypatch.setattr("dlm.engine.Engine.loaded", lambda *_: None)
    monkeypatch.setattr(serve, "check_address", lambda _: None)
    return read


@pytest.mark.parametrize(
    ("flags", "required"),
    [([], ssl.CERT_NONE), (["--ssl-certfile", "a", "--ssl-ca-certs", "b"], ssl.CERT_REQUIRED)],
)
def test_clients_need_a_certificate_if_a_flag_names_its_authorities(configured, flags, required):
    assert configured(*flags)["ssl_cert_reqs"] == required


def test_connections_outlive_the_minute_for_which_load_balancers_keep_them(configured):
    assert configured()["timeout_keep_alive"] > 60


@pytest.mark.parametrize(
    ("flags", "hosts"),
    [
        ([], ()),
        (["--api-key", "a"], ("*",)),
        (["--api-key", "a", "--host", "0.0.0.0"], ("*",)),
        (["--uds", "a"], ("*",)),
        (["--allowed-hosts", "a.example,*.b.example", "c"], ("a.example", "*.b.example", "c")),
        (["--allowed-hosts", "*"], ("*",)),
    ],
)
def test_without_a_key_a_server_takes_this_machine_s_names_only(monkeypatch, flags, hosts):
    assert serve.allowed_hosts(flags_of(monkeypatch, *flags)) == hosts


@pytest.mark.parametrize(
    ("keys", "slots", "more", "slots_kept"),
    [
        (0, 8, [], 0),
        (1, 8, [], 0),
        (2, 8, [], 1),
        (3, 8, [], 2),
        (9, 8, [], 2),
        (9, 3, [], 0),
        (0, 8, ["--reserved-slots", "3"], 3),
        (9, 8, ["--reserved-slots", "0"], 0),
    ],
)
def test_slots_are_reserved_if_clients_have_keys(monkeypatch, keys, slots, more, slots_kept):
    flags = [one for i in range(keys) for one in ("--api-key", f"k{i}")]
    args = flags_of(monkeypatch, *flags, "--slots", str(slots), *more)
    assert serve.reserved(args) == slots_kept


@pytest.fixture
def refused_unloaded(monkeypatch, refusal_of):
    """Run the command, which is refused before it loads a model; return its message."""
    monkeypatch.setattr(serve, "loading_of", lambda _: pytest.fail("a model is loaded"))
    return partial(refusal_of, serve)


@pytest.mark.parametrize("flags", [(), ("--replicas", 2)])
def test_an_address_that_another_process_has_is_refused(refused_unloaded, flags):
    if flags:
        pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        message = refused_unloaded(*flags, "--port", port)
    assert message == f"serve.py: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--host", "no.such.host.invalid", "--api-key", "x"], "on no.such.host.invalid:0: "),
        (["--host", "x..y", "--api-key", "x"], "cannot listen on x..y:0: "),
        (["--uds", "/nonexistent/x.sock"], "on /nonexistent/x.sock: No such file or directory"),
        (["--uds", "FILE"], "cannot listen on FILE: Address already in use"),
        (["--ssl-certfile", "none"], "cannot read --ssl-certfile none: No such file or directory"),
        (["--ssl-certfile", "FILE", "--ssl-keyfile", "none"], "cannot read --ssl-keyfile none: No"),
        (["--ssl-certfile", "FILE", "--ssl-ca-certs", "none"], "cannot read --ssl-ca-certs none:"),
        (["--ssl-certfile", "FILE"], "--ssl-certfile FILE must be a certificate with its key"),
    ],
)
def test_what_cannot_be_listened_on_is_refused(refused_unloaded, tmp_path, flags, problem):
    file = tmp_path / "FILE"
    file.write_text("no certificate\n")
    flags = [str(file) if flag == "FILE" else flag for flag in flags]
    assert problem.replace("FILE", str(file)) in refused_unloaded("--port", "0", *flags)


@pytest.mark.parametrize(
    ("script", "flags"),
    by_default(
        [
            ("serve", ["--replicas", "2"]),
            ("batch", ["--input", "FILE", "--output", "OUT", "--workers", "2"]),
        ]
    ),
)
def test_without_ray_the_error_names_the_package_to_install(tmp_path, script, flags):
    """Ray is hidden from the process, whether it is installed or not."""
    (tmp_path / "FILE.jsonl").write_text('"a"\n')
    paths = {"FILE": str(tmp_path / "FILE.jsonl"), "OUT": str(tmp_path / "out.jsonl")}
    command = [str(ROOT / "scripts" / f"{script}.py"), *(paths.get(flag, flag) for flag in flags)]
    code = (
        "import runpy, sys; sys.modules['ray'] = None\n"
        f"sys.argv = {command!r}; sys.path.insert(0, {str(ROOT / 'scripts')!r})\n"
        f"runpy.run_path({command[0]!r}, run_name='__main__')"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE
    )
    message = f"{script}.py: Ray is not installed: pip install 'dlm[ray]'\n"
    assert (run.returncode, run.stderr) == (2, message)


def test_a_flag_chooses_the_threads_of_a_step(monkeypatch, capsys):
    assert options.loading_of(flags_of(monkeypatch)).threads is None
    assert options.loading_of(flags_of(monkeypatch, "--threads", "3")).threads == 3
    with pytest.raises(SystemExit):
        flags_of(monkeypatch, "--threads", "0")
    assert "--threads must be at least 1, got 0" in capsys.readouterr().err


def test_flags_raise_the_limits_of_the_policy(monkeypatch):
    def policy(*flags):
        return options.loading_of(flags_of(monkeypatch, *flags)).policy

    assert policy() == Policy.server("data")
    flags = [
        *("--max-source-bytes", "100000", "--max-depth", "70"),
        *("--max-options", "2000", "--max-tools", "300"),
    ]
    limits = {"max_source_bytes": 100_000, "max_depth": 70, "max_options": 2000, "max_tools": 300}
    assert policy(*flags) == Policy.server("data", **limits)
