"""How long one client's grammar holds up another's step, at a real vocabulary.

    python scripts/stall.py --tokenizer tokenizer.json[.xz]

An innocent request runs on a denoiser without weights, on short canvases, so that a step is quick.
Beside it hostile requests come, one after the other: each is read from its HTTP body, admitted,
compiled, decoded for some steps and cancelled. For each, the worst of the calls that somebody else
waits for is told: `request_of` and `add`; `step`, less what a step takes when nobody is there; and
the longest of the steps behind that, when nobody runs: a request that comes in one waits for it.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from stress import PAD, STOPS, tokenizer_of
from transformers import PreTrainedTokenizerFast
from weightless import Weightless

import dlm
from dlm.chat import Chat
from dlm.collector import tune_garbage_collector

L, STEPS = 4, 24  # positions of a canvas; steps that a hostile request gets
IDLE = 80  # steps without a request: enough to warm up one grammar
_DEEP = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "required": ["a"]}


def schema(value: Any) -> dict[str, Any]:
    """A body that asks for a JSON schema."""
    named = {"name": "x", "schema": value, "strict": False}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def outputs(**value: Any) -> dict[str, Any]:
    return {"structured_outputs": value}


def chain(count: int, copies: int) -> dict[str, Any]:
    """Definitions each of which uses the next several times."""
    names = [f"p{i}" for i in range(copies)]
    definitions = {
        f"d{i}": {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/d{i + 1}"} for name in names},
            "required": names,
        }
        for i in range(count)
    }
    return _DEEP | {"$defs": definitions | {f"d{count}": {"type": "null"}}}


HOSTILE: dict[str, dict[str, Any]] = {
    "minLength 1e9": schema({"type": "string", "minLength": 10**9}),
    "minLength 150,000": schema({"type": "string", "minLength": 150_000}),
    "minItems 200,000": schema({"type": "array", "minItems": 200_000}),
    "minItems 1e9": schema({"type": "array", "minItems": 10**9}),
    "12 definitions, twice each": schema(chain(12, 2)),
    "26 definitions, twice each": schema(chain(26, 2)),
    "20 levels of allOf of two": schema(
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} if i < 20 else {}
                for i in range(21)
            },
        }
    ),
    "a repetition of 1e11": schema({"type": "string", "pattern": "a{1,99999999999}"}),
    "a pattern that backtracks": schema(
        {"type": "string", "maxLength": 60, "pattern": "^((a+)+b{90}|a{50})$"}
    ),
    "oneOf of 128 objects": schema(
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": f"k{i}"}, f"v{i}": {"type": "number"}},
                    "required": ["kind"],
                }
                for i in range(128)
            ]
        }
    ),
    "500 properties": schema(
        {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(500)}}
    ),
    "a schema of 1 MB": schema(
        {
            "type": "object",
            "properties": {f"k{i}": {"type": "string", "title": "x" * 200} for i in range(4300)},
        }
    ),
    "4,000 words": schema({"enum": [f"word {i * 7919 % 104_729}" for i in range(4000)]}),
    "a regex of 1,000,000 rounds": outputs(regex='("ab"|"c"){1000000}'),
    "nested repetitions": outputs(regex="(a{1,5000}){1,5000}"),
    "many states": outputs(regex="(a|b)*a(a|b){18}c"),
    "an ambiguous grammar": outputs(grammar='root ::= (a | b)* "z"\na ::= [a-z]*\nb ::= [a-z]+'),
    "rules of many readings": outputs(grammar='root ::= "a" | root root | root root root'),
    "words within words": outputs(grammar='root ::= w* "."\nw ::= [^.]* | [^.]+ " "'),
    "left recursion": outputs(grammar='root ::= root "a" | root "b" | "c" root? "d"?'),
    "a grammar of 2,000 rules": outputs(
        grammar="root ::= r0\n"
        + "\n".join(
            f'r{i} ::= "{i}" r{(i * 7 + 1) % 2000}? r{(i * 3 + 2) % 2000}?' for i in range(2000)
        )
    ),
    "multiples of a large number": schema({"type": "integer", "multipleOf": 2_147_483_647}),
    "sixteen patterns at once": schema(
        {"type": "string", "allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(16)]}
    ),
}


class Noise(Weightless):
    """A denoiser that wants the same random tokens always."""

    def __init__(self, vocab_size: int):
        super().__init__(vocab_size, L)
        self._logits = 3 * torch.randn(L, vocab_size, generator=torch.Generator().manual_seed(0))

    def denoise(
        self, canvas: Any, soft_embedding: Any, cache: Any, slots: Any, encode: Any
    ) -> torch.Tensor:
        self.encode(list(encode.values()), cache, list(encode))
        return torch.stack([self._logits] * len(slots))


class Words(Chat):
    """All prompts are one token: a denoiser without weights does not read them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer

    def prompt(self, request: dlm.Request) -> list[int]:
        return [2]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokenizer", required=True, metavar="FILE")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not Path(args.tokenizer).is_file():
        parser.error(f"there is no file {args.tokenizer}")
    torch.set_num_threads(1)
    rows = measure(Path(args.tokenizer))
    if args.json:
        print(json.dumps(rows))
    else:
        show(rows)


def measure(tokenizer: Path) -> dict[str, dict[str, float | str]]:
    """Milliseconds, by hostile request."""
    engine = engine_of(tokenizer_of(tokenizer))
    tune_garbage_collector()  # as a server would
    spec = dlm.JsonSchema({"type": "array", "items": {"type": "string"}})
    rows: dict[str, dict[str, float | str]] = {}
    try:
        for name, body in {"nobody": None, **HOSTILE}.items():
            innocent = engine.add(dlm.Request(token_ids=[2], constraint=spec, max_tokens=100_000))
            alone = steps(engine, 10)
            rows[name] = beside(engine, body, float(np.median(alone[5:])))
            engine.cancel(innocent)
            rows[name]["idle"] = round(max(steps(engine, IDLE)), 1)
    finally:
        engine.close()
    return rows


def engine_of(tokenizer: PreTrainedTokenizerFast) -> dlm.Engine:
    size = min(262_144, len(tokenizer))
    config = dlm.DecodeConfig(stops=STOPS, pad=PAD)
    return dlm.Engine(Noise(size), Words(tokenizer), config, slots=2)


def beside(engine: dlm.Engine, body: dict[str, Any] | None, normal: float) -> dict[str, Any]:
    """The worst of what others wait for while `body` is served; and how it ended."""
    worst, ended, number = 0.0, "", None
    policy = dlm.Policy.server(allow_client_grammars=True)
    begun = time.perf_counter()
    try:
        if body is not None:
            fields = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4096}
            number = engine.add(dlm.request_of(fields | body, policy))
    except dlm.RequestError as error:
        ended = str(error)
    admitted = 1000 * (time.perf_counter() - begun)
    for _ in range(STEPS):
        begun = time.perf_counter()
        events = engine.step()
        worst = max(worst, 1000 * (time.perf_counter() - begun))
        for event in events:
            if event.request == number and isinstance(event, dlm.Failed | dlm.Finished):
                ended = str(getattr(event, "error", "finished"))
    if number is not None:
        engine.cancel(number)
    return {
        "admitted": round(admitted, 1),
        "normal": round(normal, 1),
        "stall": round(worst - normal, 1),
        "ended": ended[:60],
    }


def steps(engine: dlm.Engine, count: int) -> list[float]:
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        engine.step()
        times.append(1000 * (time.perf_counter() - begun))
    return times


_COLUMNS = "admitted", "normal", "stall", "idle", "ended"


def show(rows: dict[str, dict[str, Any]]) -> None:
    table = Table("beside", "admitted/ms", "normal/ms", "stall/ms", "idle/ms", "ended")
    for name, row in rows.items():
        table.add_row(name, *(str(row[key]) for key in _COLUMNS))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
