"""Put a server under load: many clients at once, some of which hang up and some of which attack.

    python scripts/load.py clients --clients 64 --seconds 60
    python scripts/load.py clients --clients 64 --seconds 60 --hostile

Starts `scripts/serve.py` with the built-in model and requests all kinds of answers, streamed, as
chats, responses and messages unless `--forms` chooses. A fifth of the requests are cancelled at a
random moment. Every complete answer is checked. With `--hostile`, eight more clients send grammars
that take long, in the second half of the time, and the times of steps in both halves are compared.
At the end no request may hold a slot, and none may have ended without an answer or an error. Memory
grows with the grammars that are kept, up to 1 GB; with few `--different` requests it does not. Then
an engine in this process gets the same requests without a server, and the throughputs are compared.
"""

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
import jsonschema
from measure.options import MeasureParser
from measure.report import percentiles
from measure.server import FORMS, ApiForm, Body, ChatForm, StreamedAnswer, memory, served
from training.extraction import extract
from training.lessons import choice, tool_call

import dlm
from dlm.loading import tune_process
from dlm.openai.requests import chat_of
from loads.stall import HOSTILE

GIVEN_UP = 0.2  # share of requests whose clients hang up
HOSTILE_CLIENTS = 8
WATCHING = 4  # clients that get every draft, by which steps are timed
PATIENCE = 2.0  # seconds that a hostile client waits
REGEX = "[A-Z]{2}-[0-9]{3,4}"
DONE = "[DONE]"

Check = Callable[[str, list[str]], None]  # takes the text and the arguments of calls; raises


@dataclass
class Outcomes:
    """Outcomes of all requests."""

    ends: Counter[str] = field(default_factory=Counter)
    invalid: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # seconds to the first text
    tokens: int = 0  # of complete answers
    answered: list[Body] = field(default_factory=list)  # requests with complete answers
    steps: list[tuple[float, float]] = field(default_factory=list)  # when each ended, its seconds

    def step_p99(self, begin: float, end: float) -> float | None:
        return percentiles([took for at, took in self.steps if begin <= at < end]).get("p99")


def main(command: str) -> None:
    parser = MeasureParser(__doc__, "seed")
    add = parser.add_argument
    parser.add_count("--clients", 64, "The clients that send requests at once.")
    purpose = "The seconds in which requests are sent."
    add("--seconds", type=float, default=30.0, metavar="S", help=purpose)
    parser.add_count("--slots", 8, "The slots of the server.")
    parser.add_count("--different", 10**9, "The number of different requests.")
    add("--port", type=int, default=8765, metavar="N", help="The port of the server.")
    purpose = "The forms of requests. Default: all."
    add("--forms", nargs="+", choices=FORMS, default=list(FORMS), help=purpose)
    add("--hostile", action="store_true", help="Add clients that send hostile grammars.")
    args = parser.parsed()
    flags = "--slots", str(args.slots), "--policy", "all", "--log-level", "error"
    with served(args.port, *flags) as server:
        found, answered = asyncio.run(measure(args, server.pid))
    found["engine_tokens_per_second"] = without_server(answered, args.slots)
    print(json.dumps(found, indent=2))
    if found["lost"] or found["leaked"] or found["invalid"]:
        sys.exit(1)


async def measure(args: argparse.Namespace, pid: int) -> tuple[dict[str, Any], list[Body]]:
    """Return the figures of the server, whose process is `pid`, and the answered requests."""
    seen, draw = Outcomes(), random.Random(args.seed)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=args.clients)
    url = f"http://127.0.0.1:{args.port}"
    async with httpx2.AsyncClient(base_url=url, timeout=300, limits=limits) as http:
        megabytes = [int(memory(pid))]
        begun = time.monotonic()
        end = begun + args.seconds
        forms, watching = [FORMS[name] for name in args.forms], [ChatForm(drafts=True)]
        draws = [random.Random(draw.random()) for _ in range(args.clients)]
        work = [
            client(http, one, args.different, seen, end, watching if i < WATCHING else forms)
            for i, one in enumerate(draws)
        ]
        half = begun + args.seconds / 2
        if args.hostile:
            others = [random.Random(i) for i in range(HOSTILE_CLIENTS)]
            work += [hostile(http, one, seen, half, end) for one in others]
        memory_half = asyncio.create_task(later(args.seconds / 2, lambda: int(memory(pid))))
        await asyncio.gather(*work)
        seconds = time.monotonic() - begun
        megabytes += [await memory_half, int(memory(pid))]
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
        "megabytes": megabytes,  # of the server: at first, at half time, at the end
        "ttft_p50": percentiles(seen.waits).get("p50"),
        "ttft_p99": percentiles(seen.waits).get("p99"),
        "step_p99": [seen.step_p99(begun, half), seen.step_p99(half, end)],  # in both halves
        "tokens_per_second": round(seen.tokens / seconds, 1),
    }, seen.answered


async def client(
    http: httpx2.AsyncClient,
    draw: random.Random,
    different: int,
    seen: Outcomes,
    end: float,
    forms: Sequence[ApiForm],
) -> None:
    while time.monotonic() < end:
        body, check = task(random.Random(draw.randrange(different)))
        fitting = [form for form in forms if form.body(body) is not None]
        form = draw.choice(fitting or [FORMS["chat"]])
        patience = draw.uniform(0, 1.5) if draw.random() < GIVEN_UP else None
        try:
            async with asyncio.timeout(patience):
                await ask(http, body, check, seen, form)
        except TimeoutError:
            seen.ends["given up"] += 1


async def hostile(
    http: httpx2.AsyncClient, draw: random.Random, seen: Outcomes, begin: float, end: float
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
    http: httpx2.AsyncClient, body: Body, check: Check, seen: Outcomes, form: ApiForm
) -> None:
    """Send a request and record its outcome and, if drafts arrive, the times of its steps."""
    begun, first = time.monotonic(), None
    drafted: float | None = None
    found = StreamedAnswer()
    async with http.stream("POST", form.path, json=form.body(body)) as answer:
        if answer.status_code != 200:
            seen.ends[str(answer.status_code)] += 1
            return
        async for line in answer.aiter_lines():
            data = line.removeprefix("data: ")
            found.done |= data == DONE
            if not data.startswith("{"):
                continue
            event = json.loads(data)
            if "draft" in event:
                now = time.monotonic()
                if drafted is not None:
                    seen.steps.append((now, now - drafted))
                drafted = now
            form.read(event, found)
            if found.error is not None:
                seen.ends[f"error {found.error}"] += 1
                return
            if first is None and found.begun:
                first = time.monotonic() - begun
    if not found.done or found.reason is None:
        seen.ends["lost"] += 1
        return
    seen.ends[found.reason] += 1
    if first is not None:  # an answer without a constraint may be empty
        seen.waits.append(first)
    seen.tokens += found.tokens
    seen.answered.append(body)
    try:
        check(found.text, found.calls)  # valid also where max_tokens squeezed it
    except (ValueError, jsonschema.ValidationError) as error:
        seen.invalid.append(f"{form.path}: {error}"[:200])


def task(draw: random.Random) -> tuple[Body, Check]:
    """Draw a request and the check of its answer."""
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
    """Return the number of requests that still hold a slot or wait, 10 seconds after the end."""
    left = 0
    for _ in range(100):
        lines = (await http.get("/metrics")).text.splitlines()
        gauges = [line for line in lines if line.startswith("dlm:num_requests")]
        left = sum(int(float(line.rpartition(" ")[2])) for line in gauges)
        if not left:
            break
        await asyncio.sleep(0.1)
    return left


async def later(seconds: float, read: Callable[[], int]) -> int:
    await asyncio.sleep(seconds)
    return read()


def without_server(bodies: list[Body], slots: int) -> float:
    """Return the tokens a second of an engine that gets the same requests, all at once."""
    import torch

    torch.set_num_threads(1)
    engine = dlm.Engine.load(device="cpu", slots=slots)
    tune_process()
    begun, tokens = time.monotonic(), 0
    for body in bodies:
        for request in chat_of(body, engine.policy).requests:
            engine.add(request)
    while engine.busy:
        ends = (event for event in engine.step() if isinstance(event, dlm.Finished))
        tokens += sum(end.result.stats.tokens for end in ends)
    seconds = time.monotonic() - begun
    engine.close()
    return round(tokens / seconds, 1)
