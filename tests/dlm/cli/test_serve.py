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
from pathlib import Path
from types import SimpleNamespace

import httpx2
import openai
import pytest
from commands import ended
from exhaustive import by_default
from waiting import PATIENCE

from dlm import Policy
from dlm.cli import options, serve

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, str(ROOT / "scripts" / "serve.py"), "--log-level", "error"]
HI = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


@contextmanager
def started(*flags, http, there=ROOT, **environment):
    """The process, once the file `there` exists and it is well."""
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


@pytest.fixture
def refused(monkeypatch, capsys):
    """Run the command in this process; what it says on stderr before it ends with code 2."""

    def command(*flags):
        monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest has its own
        assert ended(monkeypatch, serve, *flags) == 2
        return capsys.readouterr().err

    return command


def test_a_signal_ends_the_process_once_what_it_had_begun_is_finished():
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    flags = "--port", str(port), "--slots", "1", "--shutdown-timeout", str(PATIENCE)
    asked = HI | {"max_tokens": 1500, "response_format": {"type": "json_object"}, "temperature": 2}
    with (
        httpx2.Client(base_url=url, timeout=PATIENCE) as http,
        started(*flags, http=http, DLM_API_KEYS="one two") as process,
        openai.OpenAI(base_url=f"{url}/v1", api_key="two", max_retries=0) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="three").models.list()
        running = [pool.submit(client.chat.completions.create, **asked) for _ in range(4)]
        while 'waiting{model_name="tiny"} 3.0' not in http.get("/metrics").text:
            assert not any(one.done() for one in running)
        process.send_signal(signal.SIGTERM)
        while http.get("/health").status_code == 200:
            pass
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
        assert http.get("/llm/v1/models").status_code == 200  # behind a proxy that leaves it there
        said = http.post("/v1/completions", json={"prompt": "hi", "model": "b"}).json()
        assert said["model"] == "b"
        assert str(ROOT) not in str(http.post("/v1/completions", json={"prompt": 3}).json())


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 without --api-key: everybody could use the model"),
        (["--slots", "0"], "slots is 0: it takes at least 1"),
        (["--port", "0", "--model", "/nowhere"], "no model directory at /nowhere"),
        (["--policy", "some"], "argument --policy: invalid choice: 'some'"),
        (["--shutdown-timeout", "-1"], "--shutdown-timeout is -1: it takes 0 or more seconds"),
        (["--api-key", ""], "api_keys holds an empty key"),
        (["--port", "99999"], "--port is 99999: it takes 0 to 65535"),
        (["--port", "-1"], "--port is -1: it takes 0 to 65535"),
        (["--max-queue", "-1"], "max_queue is -1: it takes 0 or more requests"),
        (["--uds", ""], "--uds is empty: it takes the path of a socket"),
        (["--ssl-keyfile", "a"], "--ssl-keyfile without --ssl-certfile: it takes both"),
        (["--ssl-ca-certs", "a"], "--ssl-ca-certs without --ssl-certfile"),
        (
            ["--replicas", "1", "--ssl-certfile", "a", "--ssl-ca-certs", "a"],
            "--ssl-ca-certs with --replicas: Ray Serve asks no client for a certificate",
        ),
        (["--replicas", "0"], "--replicas is 0: it takes at least 1"),
        (["--ray"], "--ray without --replicas: say how many engines there are to be"),
        (["--max-header-bytes", "0"], "--max-header-bytes is 0: it takes more than 0"),
        (["--header-timeout", "0"], "--header-timeout is 0: it takes more than 0"),
        (["--max-connections", "9999999"], "max_connections is 9999999: ulimit -n is "),
        (["--max-connections-per-address", "-1"], "--max-connections-per-address is -1: it takes"),
        (
            ["--replicas", "2", "--max-connections", "9"],
            "--max-connections with --replicas: Ray Serve's proxies know no such bound",
        ),
        (["--slots", "2", "--reserved-slots", "2"], "reserved_slots is 2: it takes 0 to 1"),
        (["--allowed-hosts", "a:80"], "allowed_hosts[0] is 'a:80': it takes the name of a host"),
        (["--replicas", "2", "--uds", "a"], "--uds with --replicas: Ray Serve listens on a host"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(refused, flags, problem):
    told = refused(*flags)
    assert told.startswith("serve.py: ")
    assert problem in told
    assert told.count("\n") == 1


@pytest.fixture
def configured(monkeypatch):
    """What uvicorn is told for the flags."""
    uvicorn = pytest.importorskip("uvicorn")
    told = {}

    def config(app, **more):
        told.update(more)
        raise InterruptedError

    def read(*flags):
        monkeypatch.setattr(sys, "argv", ["serve.py", *flags])
        with pytest.raises(InterruptedError):
            serve.serve_here(serve.arguments(), None)
        return told

    monkeypatch.setattr(uvicorn, "Config", config)
    monkeypatch.setattr("dlm.serving.app.app_of", lambda *_: (None, None))
    monkeypatch.setattr(serve, "loading_of", lambda _: SimpleNamespace(engine=lambda _: None))
    monkeypatch.setattr(serve, "check_address", lambda _: None)
    return read


@pytest.mark.parametrize(
    ("flags", "asked"),
    [([], ssl.CERT_NONE), (["--ssl-certfile", "a", "--ssl-ca-certs", "b"], ssl.CERT_REQUIRED)],
)
def test_clients_need_a_certificate_where_it_is_said_who_signs_them(configured, flags, asked):
    assert configured(*flags)["ssl_cert_reqs"] == asked


def test_connections_outlive_the_minute_for_which_load_balancers_keep_them(configured):
    assert configured()["timeout_keep_alive"] > 60


def flags_of(monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["serve.py", *flags])
    monkeypatch.delenv("DLM_API_KEYS", raising=False)
    return serve.arguments()


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
def test_slots_are_kept_where_clients_have_keys(monkeypatch, keys, slots, more, slots_kept):
    flags = [one for i in range(keys) for one in ("--api-key", f"k{i}")]
    args = flags_of(monkeypatch, *flags, "--slots", str(slots), *more)
    assert serve.reserved(args) == slots_kept


@pytest.fixture
def unloaded(monkeypatch):
    """No model is loaded."""
    monkeypatch.setattr(serve, "loading_of", lambda _: pytest.fail("a model is loaded"))


@pytest.mark.parametrize("flags", [(), ("--replicas", 2)])
def test_an_address_that_somebody_has_is_refused_before_a_model_is_loaded(refused, unloaded, flags):
    if flags:
        pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        told = refused(*flags, "--port", port)
    assert told == f"serve.py: cannot listen on 127.0.0.1:{port}: Address already in use\n"


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
        (["--ssl-certfile", "FILE"], "--ssl-certfile FILE is no certificate with its key"),
    ],
)
def test_what_cannot_be_listened_on_is_told_before_a_model_is_loaded(
    refused, unloaded, tmp_path, flags, problem
):
    file = tmp_path / "FILE"
    file.write_text("no certificate\n")
    told = refused("--port", "0", *(str(file) if flag == "FILE" else flag for flag in flags))
    assert told.startswith("serve.py: ")
    assert problem.replace("FILE", str(file)) in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("script", "flags"),
    by_default(
        [("serve", ["--replicas", "2"]), ("batch", ["--input", "FILE", "--output", "OUT", "--ray"])]
    ),
)
def test_without_ray_it_says_what_to_install(tmp_path, script, flags):
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
    told = f"{script}.py: Ray is not installed: pip install 'dlm[ray]'\n"
    assert (run.returncode, run.stderr) == (2, told)


def test_flags_raise_the_limits_of_the_policy(monkeypatch):
    def policy(*flags):
        monkeypatch.setattr(sys, "argv", ["serve.py", *flags])
        return options.loading_of(serve.arguments()).policy

    assert policy() == Policy.server("data")
    flags = [
        *("--max-source-bytes", "100000", "--max-depth", "70"),
        *("--max-options", "2000", "--max-tools", "300"),
    ]
    limits = {"max_source_bytes": 100_000, "max_depth": 70, "max_options": 2000, "max_tools": 300}
    assert policy(*flags) == Policy.server("data", **limits)
