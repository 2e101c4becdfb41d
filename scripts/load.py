"""A server under load: many clients at once, some of whom hang up, and some of whom are hostile.

    python scripts/load.py --clients 64 --seconds 60
    python scripts/load.py --clients 64 --seconds 60 --hostile

Starts `scripts/serve.py` with the built-in model, and asks for all kinds of answers, streamed. A
fifth of the requests are given up at a random moment. Every answer that came whole is checked.
With `--hostile`, eight more clients send grammars that are made to take long, in the second half of
the time: how long steps take then is compared with the first. At the end nobody may hold a slot,
and no request may have ended without a word. Memory grows with the grammars that are kept, up to
1 GB; with few `--different` requests it does not. Then the same requests are given to an engine in
this process, without a server: their throughputs are compared.
"""

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import numpy as np
from stall import HOSTILE
from training.extraction import extract
from training.lessons import choice
from training.tools import tool_call

import dlm
from dlm.collector import tune_garbage_collector
from dlm.openai.requests import chat_of

SERVE = Path(__file__).with_name("serve.py")
GIVEN_UP = 0.2  # share of requests whose clients hang up
HOSTILE_CLIENTS = 8
WATCHING = 4  # clients that are sent every draft, and so see how long steps take
PATIENCE = 2.0  # seconds of a hostile client
REGEX = "[A-Z]{2}-[0-9]{3,4}"
DONE = "[DONE]"

Body = dict[str, Any]
Check = Callable[[str, list[str]], None]  # of the text and the arguments of calls; raises


@dataclass
class Seen:
    """What happened to all requests."""

    ends: Counter[str] = field(default_factory=Counter)
    invalid: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # seconds to the first text
    tokens: int = 0  # of answers that came whole
    asked: list[Body] = field(default_factory=list)  # of those
    steps: list[tuple[float, float]] = field(default_factory=list)  # when each ended, its seconds

    def step_p99(self, begin: float, end: float) -> float | None:
        return percentile([took for at, took in self.steps if begin <= at < end], 99)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, default=64, metavar="N")
    parser.add_argument("--seconds", type=float, default=30.0, metavar="S")
    parser.add_argument("--slots", type=int, default=8, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--different", type=int, default=10**9, metavar="N", help="requests")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--hostile", action="store_true")
    args = parser.parse_args()
    flags = ["--port", str(args.port), "--slots", str(args.slots), "--policy", "all"]
    command = [sys.executable, str(SERVE), "--log-level", "error", *flags]
    server = subprocess.Popen(command)
    try:
        found, asked = asyncio.run(measure(args, server))
    finally:
        server.terminate()
        server.wait(60)
    found["engine_tokens_per_second"] = bare(asked, args.slots)
    print(json.dumps(found, indent=2))
    if found["lost"] or found["leaked"] or found["invalid"]:
        sys.exit(1)


async def measure(
    args: argparse.Namespace, server: "subprocess.Popen[bytes]"
) -> tuple[dict[str, Any], list[Body]]:
    """What is told at the end, and what was asked for and answered."""
    pid = server.pid
    seen, draw = Seen(), random.Random(args.seed)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=args.clients)
    url = f"http://127.0.0.1:{args.port}"
    async with httpx2.AsyncClient(base_url=url, timeout=300, limits=limits) as http:
        await until_well(http, server)
        memory = [resident(pid)]
        begun = time.monotonic()
        end = begun + args.seconds
        draws = [random.Random(draw.random()) for _ in range(args.clients)]
        work = [
            client(http, one, args.different, seen, end, i < WATCHING)
            for i, one in enumerate(draws)
        ]
        half = begun + args.seconds / 2
        if args.hostile:
            others = [random.Random(i) for i in range(HOSTILE_CLIENTS)]
            work += [hostile(http, one, seen, half, end) for one in others]
        memory_half = asyncio.create_task(later(args.seconds / 2, lambda: resident(pid)))
        await asyncio.gather(*work)
        seconds = time.monotonic() - begun
        memory += [await memory_half, resident(pid)]
        leaked = await still_running(http)
    return {
        "clients": args.clients,
        "hostile": args.hostile,
        "slots": args.slots,
        "seconds": round(seconds, 1),
        "ends": dict(seen.ends),
        "lost": seen.ends["lost"],
        "leaked": leaked,
        "invalid": seen.invalid,
        "megabytes": memory,  # of the server: at first, at half time, at the end
        "ttft_p50": percentile(seen.waits, 50),
        "ttft_p99": percentile(seen.waits, 99),
        "step_p99": [seen.step_p99(begun, half), seen.step_p99(half, end)],  # in both halves
        "tokens_per_second": round(seen.tokens / seconds, 1),
    }, seen.asked


async def client(
    http: httpx2.AsyncClient,
    draw: random.Random,
    different: int,
    seen: Seen,
    end: float,
    watching: bool,
) -> None:
    while time.monotonic() < end:
        body, check = task(random.Random(draw.randrange(different)))
        patience = draw.uniform(0, 1.5) if draw.random() < GIVEN_UP else None
        try:
            async with asyncio.timeout(patience):
                await ask(http, body, check, seen, watching)
        except TimeoutError:
            seen.ends["given up"] += 1


async def hostile(
    http: httpx2.AsyncClient, draw: random.Random, seen: Seen, begin: float, end: float
) -> None:
    await asyncio.sleep(begin - time.monotonic())
    while time.monotonic() < end:
        name = draw.choice(list(HOSTILE))
        body = {"messages": [{"role": "user", "content": name}], "max_tokens": 512}
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await http.post("/v1/chat/completions", json=body | HOSTILE[name])
            seen.ends[f"hostile: {answer.status_code}"] += 1
        except TimeoutError:
            seen.ends["hostile: given up"] += 1


async def ask(
    http: httpx2.AsyncClient, body: Body, check: Check, seen: Seen, watching: bool
) -> None:
    """One request to its end, which is noted, and, `watching`, the time of its steps."""
    begun, first = time.monotonic(), None
    drafted: float | None = None
    text, calls, reason, tokens = "", list[str](), None, 0
    options = {"include_usage": True, "drafts": watching}
    streamed = body | {"stream": True, "stream_options": options}
    async with http.stream("POST", "/v1/chat/completions", json=streamed) as answer:
        if answer.status_code != 200:
            seen.ends[str(answer.status_code)] += 1
            return
        done = False
        async for line in answer.aiter_lines():
            data = line.removeprefix("data: ")
            if data == DONE:
                done = True
            if not data.startswith("{"):
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                seen.ends[f"error {chunk['error']['code']}"] += 1
                return
            if "draft" in chunk:
                now = time.monotonic()
                if drafted is not None:
                    seen.steps.append((now, now - drafted))
                drafted = now
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            for one in chunk["choices"]:
                delta = one["delta"]
                text += delta.get("content") or ""
                for call in delta.get("tool_calls", ()):
                    calls += [""] if "id" in call else []
                    calls[-1] += call["function"]["arguments"]
                reason = one["finish_reason"] or reason
                if first is None and (text or calls or delta.get("reasoning")):
                    first = time.monotonic() - begun
    if not done or reason is None:
        seen.ends["lost"] += 1
        return
    seen.ends[reason] += 1
    if first is not None:  # an answer without a constraint may be empty
        seen.waits.append(first)
    seen.tokens += tokens
    seen.asked.append(body)
    try:
        if reason != "length":
            check(text, calls)
    except (ValueError, jsonschema.ValidationError) as error:
        seen.invalid.append(f"{error}"[:200])


def task(draw: random.Random) -> tuple[Body, Check]:
    """Something to ask for, and what an answer to it must be."""
    body: Body = {"model": "tiny", "seed": draw.randrange(2**31), "max_tokens": 256}
    kind = draw.choice(("free", "schema", "schema", "choice", "regex", "tools", "reasoning"))
    sample = {"choice": choice, "tools": tool_call}.get(kind, extract)(draw, "heldout")
    body["messages"] = [{"role": "user", "content": sample.prompt}]
    match kind:
        case "schema" | "reasoning":
            schema = sample.schema or {}
            named = {"name": "sample", "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
            if kind == "reasoning":
                body["reasoning_effort"] = "low"
            return body, lambda text, _: jsonschema.validate(json.loads(text), schema)
        case "choice":
            words = sample.schema["enum"] if sample.schema else []
            body["structured_outputs"] = {"choice": words}
            return body, lambda text, _: expect(text in words, text)
        case "regex":
            body["structured_outputs"] = {"regex": REGEX}
            return body, lambda text, _: expect(bool(re.fullmatch(REGEX, text)), text)
        case "tools":
            body |= {"tools": sample.tools, "tool_choice": "required"}
            return body, lambda _, calls: expect(bool(calls) and all(map(json.loads, calls)), calls)
    return body, lambda text, _: None


def expect(right: bool, found: Any) -> None:
    if not right:
        raise ValueError(f"an answer that was not allowed: {found!r:.100}")


async def still_running(http: httpx2.AsyncClient) -> int:
    """Requests that hold a slot or wait for one although nobody asks any more."""
    left = 0
    for _ in range(100):
        lines = (await http.get("/metrics")).text.splitlines()
        gauges = [line for line in lines if line.startswith("dlm:num_requests")]
        left = sum(int(float(line.rpartition(" ")[2])) for line in gauges)
        if not left:
            break
        await asyncio.sleep(0.1)
    return left


async def until_well(http: httpx2.AsyncClient, server: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        if server.poll() is not None:  # who answers on its port is another
            raise SystemExit(f"load.py: the server ended with {server.returncode}")
        try:
            if (await http.get("/health")).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        await asyncio.sleep(0.1)
    raise SystemExit("load.py: the server does not begin")


async def later(seconds: float, read: Callable[[], int]) -> int:
    await asyncio.sleep(seconds)
    return read()


def percentile(seconds: list[float], share: int) -> float | None:
    return round(float(np.percentile(seconds, share)), 4) if seconds else None


def resident(pid: int) -> int:
    """Megabytes of memory that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024


def bare(asked: list[Body], slots: int) -> float:
    """Tokens a second of an engine that is given the same requests, all at once."""
    import torch

    torch.set_num_threads(1)
    engine = dlm.Engine.load(device="cpu", slots=slots)
    tune_garbage_collector()
    begun, tokens = time.monotonic(), 0
    for body in asked:
        for request in chat_of(body, engine.policy).requests:
            engine.add(request)
    while engine.busy:
        ends = (event for event in engine.step() if isinstance(event, dlm.Finished))
        tokens += sum(end.result.stats.tokens for end in ends)
    seconds = time.monotonic() - begun
    engine.close()
    return round(tokens / seconds, 1)


if __name__ == "__main__":
    main()
