"""Measure how long one client's grammar delays another client's step, at a real vocabulary.

    python scripts/load.py stall --tokenizer tokenizer.json[.xz]

An innocent request runs on a denoiser without weights, on short canvases, so that a step is quick.
Beside it hostile requests come, one after the other: each is read from its HTTP body, admitted,
compiled, decoded for some steps and cancelled. For each, the table has the longest of the calls
that other clients wait for: `admitted` of `request_of` and `add`; `stall` of `step`, minus the
normal time of a step; `idle` of the steps without a request after that.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure.options import MeasureParser
from measure.report import print_table
from measure.schemas import GEMMA, PAD, STOPS, tokenizer_of
from measure.weightless import TokenChat, Weightless
from transformers import PreTrainedTokenizerFast

import dlm
from dlm.loading import tune_process

CANVAS, STEPS = 4, 24  # positions of a canvas; steps of a hostile request
IDLE = 80  # steps without a request: enough to warm up one grammar
_COLUMNS = "admitted", "normal", "stall", "idle", "ended"
_DEEP = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "required": ["a"]}


def schema(value: Any) -> dict[str, Any]:
    """Return the fields of a body that asks for a JSON schema."""
    named = {"name": "x", "schema": value, "strict": False}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def outputs(**value: Any) -> dict[str, Any]:
    return {"structured_outputs": value}


def chain(count: int, copies: int) -> dict[str, Any]:
    """Return a schema of `count` definitions, each of which uses the next one `copies` times."""
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
    """A denoiser with the same random logits in every pass."""

    def __init__(self, vocab_size: int):
        super().__init__(vocab_size, CANVAS)
        rng = torch.Generator().manual_seed(0)
        self._logits = 3 * torch.randn(CANVAS, vocab_size, generator=rng)

    def denoise(
        self, canvas: Any, soft_embedding: Any, cache: Any, slots: Any, encode: Any
    ) -> torch.Tensor:
        self.encode(list(encode.values()), cache, list(encode))
        return torch.stack([self._logits] * len(slots))


def main(command: str) -> None:
    args = MeasureParser(__doc__, "tokenizer", "json", required=["tokenizer"]).parsed()
    torch.set_num_threads(1)
    rows = measure(args.tokenizer)
    if args.json:
        print(json.dumps(rows))
    else:
        headings = "beside", "admitted/ms", "normal/ms", "stall/ms", "idle/ms", "ended"
        cells = ([name, *(str(row[key]) for key in _COLUMNS)] for name, row in rows.items())
        print_table(headings, cells, left=["ended"], width=140)


def measure(tokenizer: Path) -> dict[str, dict[str, float | str]]:
    """Return the milliseconds beside each hostile request."""
    engine = engine_of(tokenizer_of(tokenizer))
    tune_process()  # as a server would
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
    size = min(GEMMA, len(tokenizer))
    config = dlm.DecodeConfig(stops=STOPS, pad=PAD)
    return dlm.Engine(Noise(size), TokenChat(tokenizer), config, slots=2)


def beside(engine: dlm.Engine, body: dict[str, Any] | None, normal: float) -> dict[str, Any]:
    """Return the longest times that others wait while `body` is served, and how it ended."""
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
