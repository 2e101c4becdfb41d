"""Answer a file of requests, in the form of OpenAI's batches, as fast as the model can.

    python scripts/batch.py requests.jsonl answers.jsonl --model DIR --slots 16

A line of requests is {"custom_id": ..., "url": "/v1/chat/completions", "body": {...}}. Answers come
in the order in which they end. Run again after it was interrupted, it answers what is missing. Exit
codes: 0 all lines have answers, 1 some of them are errors, 2 bad usage, 130 interrupted.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

from serve import POLICIES, load

import dlm
from dlm.collector import collect_seldom
from dlm.openai.batch import Batch, custom_ids


def main() -> None:
    args = arguments()
    try:
        done = answered(args.answers)
        with args.requests.open(encoding="utf-8") as lines, closing(load(args)) as engine:
            collect_seldom()
            name = args.model.resolve().name if args.model else "tiny"
            failed = run(Batch(engine, name), missing(lines, done), args.answers)
    except (dlm.DlmError, dlm.ModelError) as error:
        fail(str(error))
    except UnicodeDecodeError as error:
        fail(f"{args.requests} is not UTF-8 text: {error.reason} at byte {error.start}")
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(1 if failed else 0)


def run(batch: Batch, lines: Iterator[str], path: Path) -> int:
    """Writes answers as they come; returns how many of them are errors."""
    failed = count = 0
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        for answer in batch.run(lines):
            print(json.dumps(answer, ensure_ascii=False), file=file, flush=True)
            failed += answer["error"] is not None
            count += 1
            print(f"\r{count} answers, {failed} errors", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return failed


def answered(path: Path) -> set[str]:
    """What an earlier run has answered. A last line that it could not finish is taken away."""
    if not path.exists():
        return set()
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if whole != raw:
        path.write_bytes(whole)
    return custom_ids(whole.decode("utf-8", "replace").splitlines())


def missing(lines: Iterator[str], done: set[str]) -> Iterator[str]:
    return (line for line in lines if not custom_ids([line]) & done)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("requests", type=Path, metavar="REQUESTS")
    parser.add_argument("answers", type=Path, metavar="ANSWERS", help="what is there is kept")
    parser.add_argument("--model", type=Path, metavar="DIR", help="built in: tiny, on the CPU")
    parser.add_argument("--device", metavar="NAME", help="cuda if there is one, else cpu")
    parser.add_argument("--kv", default="auto", help="keys and values: fp8, bf16, fp16 or fp32")
    parser.add_argument("--cache-tokens", type=int, metavar="N", help="without, memory grows")
    parser.add_argument("--slots", type=int, default=8, metavar="N", help="requests at once; 8")
    parser.add_argument("--policy", choices=POLICIES, default="all", help="constraints; all")
    return parser.parse_args()


def fail(message: str) -> NoReturn:
    print(f"batch.py: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
