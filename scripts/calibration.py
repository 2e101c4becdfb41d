"""How far the probabilities of decisions can be believed, on held-out choices.

    python scripts/calibration.py --n 200

Two tasks: "words", a word of a closed list, which the built-in model is trained on, and "fields",
the value that a text gives a field, of four, which it is not. Each is decided from a canvas and
left to right, and written under `Choice` for comparison. ECE is the expected calibration error of
the most likely label in ten bins of its probability, Brier the sum of squared errors over all
labels.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Literal, get_args

from rich.console import Console
from rich.table import Table
from training import kinds, patterns
from training.draws import Draw
from training.extraction import texts_of
from training.lessons import choice
from training.names import TEXTS

import dlm

BINS = 10
By = Literal["canvas", "causal"]
_OTHERS = 3  # values that are wrong


@dataclass(frozen=True)
class Case:
    prompt: str
    labels: list[str]
    right: str


@dataclass(frozen=True, kw_only=True)
class Bin:
    """Decisions whose most likely label has a probability in one tenth of 0 to 1."""

    count: int
    confidence: float  # mean
    right: float  # share


@dataclass(frozen=True, kw_only=True)
class Row:
    task: str
    by: By
    n: int
    right: int  # the most likely label is
    generated_right: int  # the text under `Choice` is
    brier: float
    ece: float
    mass: float  # mean probability of all labels together
    bins: list[Bin | None]  # None: nothing falls in it


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", metavar="DIR", help="built in: tiny")
    parser.add_argument("--n", type=int, default=200, help="decisions of each task")
    parser.add_argument("--seed", type=int, default=0, help="of the tasks and the canvases")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    engine = dlm.Engine.load(args.model)
    rows = report(engine, args.n, args.seed)
    if args.json:
        for row in rows:
            print(json.dumps(asdict(row)))
    else:
        Console(width=100).print(table(rows))


def report(engine: dlm.Engine, n: int, seed: int) -> list[Row]:
    rows = []
    for task, make in (("words", word), ("fields", field)):
        random = Random(f"calibration/{task}/{seed}")
        cases = [make(random) for _ in range(n)]
        written = generated(engine, cases, seed)
        rows += [measured(engine, task, cases, by, written, seed) for by in get_args(By)]
    return rows


def word(random: Random) -> Case:
    item = choice(random, "heldout")
    return Case(item.prompt, list((item.schema or {})["enum"]), str(item.value))


def field(random: Random) -> Case:
    """A field that a text gives a string: that string, and three of its kind not in the text."""
    draw = Draw(random, "heldout")
    while True:
        domain = random.choice(patterns.domains(False))
        sentences, values, _ = texts_of(domain, "heldout", draw)
        strings = [name for name in values if domain.fields[name].kind in TEXTS]
        if strings:
            break
    name = random.choice(strings)
    asked, right, text = domain.fields[name], values[name].value, " ".join(sentences)
    labels = [right]
    while len(labels) <= _OTHERS:
        other = kinds.draw(asked.kind, draw).value
        if other not in labels and other.lower() not in text.lower():
            labels.append(other)
    random.shuffle(labels)
    key = random.choice(asked.names).replace("_", " ")
    prompt = f"What is the {key}? Answer with one of {', '.join(labels)}. {text}"
    return Case(prompt, labels, right)


def generated(engine: dlm.Engine, cases: Sequence[Case], seed: int) -> int:
    """How many are right if they are written."""
    requests = [
        dlm.Request(prompt=case.prompt, constraint=dlm.Choice(case.labels), seed=seed + i)
        for i, case in enumerate(cases)
    ]
    results = engine.generate(requests)
    return sum(r.text == case.right for r, case in zip(results, cases, strict=True))


def measured(
    engine: dlm.Engine, task: str, cases: Sequence[Case], by: By, written: int, seed: int
) -> Row:
    told = []
    for i, case in enumerate(cases):
        question = dlm.Selection(choices=[dlm.Label(value) for value in case.labels])
        (answer,) = engine.decide(dlm.Request(prompt=case.prompt, seed=seed + i), [question], by)
        if not isinstance(answer, dlm.SelectionAnswer):
            raise TypeError(f"a choice was answered with {answer!r}")
        told.append(answer)
    hits = [a.choice == case.right for a, case in zip(told, cases, strict=True)]
    confidences = [a.confidence for a in told]
    return Row(
        task=task,
        by=by,
        n=len(cases),
        right=sum(hits),
        generated_right=written,
        brier=sum(brier(a.probabilities, case.right) for a, case in zip(told, cases, strict=True))
        / len(cases),
        ece=ece(confidences, hits),
        mass=sum(a.mass for a in told) / len(told),
        bins=reliability(confidences, hits),
    )


def brier(probabilities: dict[str, float], right: str) -> float:
    """0 for what is certain and right, 2 for what is certain and wrong (Brier, 1950)."""
    return sum((p - (value == right)) ** 2 for value, p in probabilities.items())


def reliability(confidences: Sequence[float], hits: Sequence[bool]) -> list[Bin | None]:
    """By tenths of confidence, the lowest first; 1 is in the last."""
    found: list[Bin | None] = []
    for i in range(BINS):
        some = [j for j, p in enumerate(confidences) if min(int(p * BINS), BINS - 1) == i]
        if not some:
            found.append(None)
            continue
        mean = sum(confidences[j] for j in some) / len(some)
        right = sum(hits[j] for j in some) / len(some)
        found.append(Bin(count=len(some), confidence=mean, right=right))
    return found


def ece(confidences: Sequence[float], hits: Sequence[bool]) -> float:
    """How far confidence and share of hits are apart, over bins by their counts (Naeini, 2015)."""
    bins = [one for one in reliability(confidences, hits) if one]
    return sum(b.count * abs(b.confidence - b.right) for b in bins) / len(confidences)


def table(rows: list[Row]) -> Table:
    shown = Table(*("task", "by", "right", "generated", "Brier", "ECE", "mass", "reliability"))
    for row in rows:
        curve = [f"{b.confidence:.2f}:{b.right:.2f} ({b.count})" for b in row.bins if b]
        shown.add_row(
            row.task,
            row.by,
            f"{row.right}/{row.n}",
            f"{row.generated_right}/{row.n}",
            f"{row.brier:.4f}",
            f"{row.ece:.4f}",
            f"{row.mass:.3f}",
            "\n".join(curve),
        )
    return shown


if __name__ == "__main__":
    main()
