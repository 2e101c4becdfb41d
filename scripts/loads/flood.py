"""Measure how long one client waits while others flood the server.

    python scripts/load.py flood
    python scripts/load.py flood --requests 30 --json

Starts `scripts/serve.py` with the built-in model, to which a vision tower of random weights is
added, with three keys and 1,024 files that it may open, on this machine's loopback. An innocent
client requests one small answer after another: while nothing else happens, and beside each attack.
For each the table has the median and the longest of its times in seconds, the number of refused or
missing answers, and the memory of the server's process (RSS) in megabytes before, at most during,
and after the attack.

Attacks end after a bounded number of bytes, connections and seconds. Exit codes: 0 all answers
came in time, 1 some answer was refused or missing, or took more than `--within` times the longest
of the quiet answers.
"""

import argparse
import json
import multiprocessing
import resource
import secrets
import socket
import statistics
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from io import BytesIO
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from measure.options import MeasureParser
from measure.seeing import write
from measure.server import memory, served

FILES = 1024  # that the server may open
HALF_OPEN = 2000  # connections
HEADER = 256 << 20  # bytes of the one large header
HEADERS = 100 << 20  # bytes of the many small ones
PIECE = 1 << 20  # bytes that an attacker sends at once
ROUNDS = 50  # the most repetitions of an attack
POSTS = 2000  # the most bodies that an attacker sends one after another
PIXELS = 8000, 4992  # 39.9 of the 40 million pixels that an image may have
SCANS = (54, 600, 100_000)  # of a picture: the most that are decoded, and more
NESTED = 4900  # lists in a body that is stored, each of 50 levels
EMOJIS = 1_000_000  # of four bytes, to be tokenized
GREEDY = 8  # requests of each client that requests as much as it may
CHOICES = 16  # answers of such a request
ANSWER = 1500  # the most tokens of such an answer
PATIENCE = 120.0  # seconds for an answer
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
INNOCENT = {
    "messages": [
        {"role": "user", "content": "Extract name, age as JSON. My brother Ben Kim is 34."}
    ],
    "max_tokens": 64,
    "seed": 0,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "person", "schema": SCHEMA},
    },
}

Attack = Callable[[int, list[str], Event, Event], None]


@dataclass(kw_only=True)
class FloodRow:
    """Answers to the innocent client beside one attack, and the server's memory."""

    attack: str
    answers: int
    refused: int  # answers of another status, or none
    median: float  # seconds
    worst: float
    before: float  # megabytes
    peak: float
    after: float


def main(command: str) -> None:
    parser = MeasureParser(__doc__, "json")
    add = parser.add_argument
    add("--port", type=int, default=8766, metavar="N", help="The port of the server.")
    parser.add_count("--requests", 15, "The requests of the innocent client for each row.")
    purpose = "The most that an answer may take, as a multiple of the longest quiet answer."
    add("--within", type=float, default=3.0, metavar="X", help=purpose)
    parser.add_count("--slots", 8, "The slots of the server.")
    add("--only", nargs="+", choices=list(ATTACKS), help="Some of the attacks. Default: all.")
    args = parser.parsed()
    keys = tuple(secrets.token_hex(8) for _ in range(3))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    flags = "--log-level", "critical", "--slots", str(args.slots), "--shutdown-timeout", "0"
    with TemporaryDirectory() as directory:
        flags += "--model", str(write(Path(directory)))
        with served(args.port, *flags, keys=keys, files=FILES) as server:
            rows = measure(args, server.pid, keys)
    print(json.dumps([asdict(row) for row in rows], indent=2) if args.json else table(rows))
    if not held(rows, args.within):
        sys.exit(1)


def held(rows: list[FloodRow], within: float) -> bool:
    """Whether all answers came, each within `within` times the longest of the first row."""
    most = within * rows[0].worst
    return not any(row.refused or row.worst > most for row in rows)


def measure(args: argparse.Namespace, pid: int, keys: tuple[str, ...]) -> list[FloodRow]:
    innocent, *others = keys
    for _ in range(3):
        ask(args.port, innocent)  # the grammar is compiled, and the model is warm
    rows = [beside("quiet", None, args, pid, innocent, others)]
    for name in args.only or ATTACKS:
        rows.append(beside(name, ATTACKS[name], args, pid, innocent, others))
    return rows


def beside(
    name: str,
    attack: Attack | None,
    args: argparse.Namespace,
    pid: int,
    innocent: str,
    others: list[str],
) -> FloodRow:
    """Send the innocent client's requests while `attack` runs in a process of its own."""
    before, peak = memory(pid), 0.0
    context = multiprocessing.get_context("fork")
    begun, over = context.Event(), context.Event()
    attacker = None
    if attack is not None:
        attacker = context.Process(target=attack, args=(args.port, others, begun, over))
        attacker.start()
        begun.wait(PATIENCE)
    times, refused = list[float](), 0
    for _ in range(args.requests):
        took, status = ask(args.port, innocent)
        times.append(took)
        refused += status != 200
        peak = max(peak, memory(pid))
    over.set()
    if attacker is not None:
        attacker.join(10)
        attacker.kill()
        time.sleep(0.5)  # for connections to be closed
    return FloodRow(
        attack=name,
        answers=len(times),
        refused=refused,
        median=statistics.median(times),
        worst=max(times),
        before=before,
        peak=peak,
        after=memory(pid),
    )


def ask(port: int, key: str) -> tuple[float, int]:
    """Return the seconds of a new connection and an answer, and its status, 0 for no answer."""
    begin, status = time.perf_counter(), 0
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        connection.request("POST", "/v1/chat/completions", json.dumps(INNOCENT), headers)
        answer = connection.getresponse()
        answer.read()
        status = answer.status
    except (OSError, HTTPException):
        pass
    finally:
        connection.close()
    return time.perf_counter() - begin, status


def one_header(port: int, keys: list[str], begun: Event, over: Event) -> None:
    """Send one header of 256 MB, again and again."""
    repeated(port, [b"GET /v1/models HTTP/1.1\r\nX: "], b"x" * PIECE, HEADER, begun, over)


def small_headers(port: int, keys: list[str], begun: Event, over: Event) -> None:
    """Send 100 MB of headers, and of trailers, again and again."""
    chunked = b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
    chunked += b"Content-Type: application/json\r\nAuthorization: Bearer " + keys[0].encode()
    heads = [b"GET /v1/models HTTP/1.1\r\n", chunked + b"\r\n\r\n1\r\n{\r\n0\r\n"]
    line = b"X-Name: v\r\n"
    repeated(port, heads, line * (PIECE // len(line)), HEADERS, begun, over)


def repeated(
    port: int, heads: list[bytes], piece: bytes, size: int, begun: Event, over: Event
) -> None:
    """Send one of `heads` and `size` bytes of pieces on a connection, until it breaks."""
    for i in range(ROUNDS):
        if over.is_set():
            return
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), PATIENCE) as one:
            one.sendall(heads[i % len(heads)])
            begun.set()
            for _ in range(size // len(piece)):
                one.sendall(piece)


def half_open(port: int, keys: list[str], begun: Event, over: Event) -> None:
    """Open 2,000 connections, and send half a request on every second of them."""
    there = list[socket.socket]()
    for i in range(HALF_OPEN):
        with suppress(OSError):
            there.append(socket.create_connection(("127.0.0.1", port), PATIENCE))
            if i % 2:
                there[-1].sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: local")
        if i == HALF_OPEN // 2:
            begun.set()
    over.wait(PATIENCE)


def everything(port: int, keys: list[str], begun: Event, over: Event) -> None:
    """Request as much as each of two keys may, and read nothing of the answers."""
    body = {
        "messages": [{"role": "user", "content": "Tell me everything."}],
        "max_tokens": ANSWER,
        "n": CHOICES,
        "temperature": 2,
        "stream": True,
        "stream_options": {"drafts": True},
    }
    there = list[socket.socket]()
    for i in range(GREEDY):
        for key in keys:
            content = json.dumps(body | {"seed": i}).encode()
            there.append(socket.create_connection(("127.0.0.1", port), PATIENCE))
            head = (
                "POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
                f"Authorization: Bearer {key}\r\nContent-Length: {len(content)}\r\n\r\n"
            )
            there[-1].sendall(head.encode() + content)
    there[0].recv(1)  # the server has begun to answer
    begun.set()
    over.wait(PATIENCE)


def pictures(port: int, keys: list[str], begun: Event, over: Event) -> None:
    """Send large pictures of very many scans, and some of the most that are decoded."""
    bodies = [_asking_about(picture_of(scans)) for scans in SCANS]
    posted(port, "/v1/chat/completions", bodies, keys, begun, over)


def _asking_about(picture: bytes) -> bytes:
    url = f"data:image/jpeg;base64,{b64encode(picture).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What?"}]
    return json.dumps({"messages": [{"role": "user", "content": parts}], "max_tokens": 4}).encode()


def picture_of(scans: int) -> bytes:
    """Return a large grey JPEG whose last scan, of some hundred bytes, comes `scans` times more."""
    from PIL import Image

    file = BytesIO()
    Image.new("L", PIXELS).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    begin, end = data.rindex(b"\xff\xda"), len(data) - 2
    return data[:end] + data[begin:end] * scans + data[end:]


def stored(port: int, keys: list[str], begun: Event, over: Event) -> None:
    """Have responses stored that repeat many nested lists."""
    lists = ",".join(["[" * 50 + "]" * 50] * NESTED)
    body = f'{{"input": "x", "max_output_tokens": 1, "metadata": {{"a": [{lists}]}}}}'
    posted(port, "/v1/responses", [body.encode()], keys, begun, over)


def tokenized(port: int, keys: list[str], begun: Event, over: Event) -> None:
    """Send texts of 4 MB to be tokenized."""
    text = "\U0001f600" * EMOJIS
    bodies = [
        json.dumps(body, ensure_ascii=False).encode()
        for body in ({"prompt": text}, {"messages": [{"role": "user", "content": text}]})
    ]
    posted(port, "/tokenize", bodies, keys, begun, over)


def posted(
    port: int, path: str, bodies: list[bytes], keys: list[str], begun: Event, over: Event
) -> None:
    """Send bodies one after another, by a connection for each key at once, and read the answers."""

    def send(key: str) -> None:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        for i in range(POSTS):
            if over.is_set():
                return
            with suppress(OSError, HTTPException):
                connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
                try:
                    connection.request("POST", path, bodies[i % len(bodies)], headers)
                    begun.set()
                    connection.getresponse().read()
                finally:
                    connection.close()

    threads = [threading.Thread(target=send, args=(key,), daemon=True) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)


ATTACKS: dict[str, Attack] = {
    "one header of 256 MB": one_header,
    "100 MB of small headers": small_headers,
    "2,000 half-open connections": half_open,
    "two clients that ask for everything": everything,
    "pictures of very many scans": pictures,
    "nested responses that are stored": stored,
    "4 MB to tokenize": tokenized,
}


def table(rows: list[FloodRow]) -> str:
    """Return a table in Markdown."""
    lines = [
        "| attack | median s | worst s | times quiet | refused | MB before, at most, after |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells: list[Any] = [row.attack, f"{row.median:.3f}", f"{row.worst:.3f}"]
        cells += [f"{row.worst / rows[0].worst:.2f}", f"{row.refused} of {row.answers}"]
        cells.append(f"{row.before:.0f}, {row.peak:.0f}, {row.after:.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
