"""Measure how well the probabilities of decisions are calibrated, on held-out choices.

    python scripts/evaluate.py decisions --prompts 200

Two tasks: "words", a word of a closed list, for which the built-in model is trained, and "fields",
the value that a text gives a field, one of four, for which it is not. Each is decided from a canvas
and left to right, and generated under `Choice` for comparison. ECE is the expected calibration
error of the most likely label in ten bins of its probability, Brier the sum of squared errors over
all labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Literal, get_args

from measure.options import MeasureParser
from measure.report import ResultRow, print_rows
from training import kinds, patterns
from training.extraction import texts_of
from training.lessons import choice
from training.words import Draw

import dlm

BINS = 10
By = Literal["canvas", "causal"]
_OTHERS = 3  # wrong values of a field


@dataclass(frozen=True)
class LabelledPrompt:
    """A prompt, the labels to decide among, and the right one."""

    prompt: str
    labels: list[str]
    right: str


@dataclass(frozen=True, kw_only=True)
class ConfidenceBin:
    """Decisions whose most likely label has a probability in one tenth of 0 to 1."""

    count: int
    confidence: float  # mean
    right: float  # share


@dataclass(kw_only=True)
class CalibrationRow(ResultRow):
    """Figures of one task, decided in one way."""

    COLUMNS: ClassVar = {
        "task": "{0.task}",
        "by": "{0.by}",
        "right": "{0.right}/{0.n}",
        "generated": "{0.generated_right}/{0.n}",
        "Brier": "{0.brier:.4f}",
        "ECE": "{0.ece:.4f}",
        "mass": "{0.mass:.3f}",
        "reliability": "{0.curve}",
    }

    task: str
    by: By
    n: int
    right: int  # decisions whose most likely label is right
    generated_right: int  # generated texts that are right
    brier: float
    ece: float
    mass: float  # mean probability of all labels together
    bins: list[ConfidenceBin | None]  # None: no decision falls in it

    @property
    def curve(self) -> str:
        """The bins' confidences and shares of right decisions, one a line."""
        return "\n".join(f"{b.confidence:.2f}:{b.right:.2f} ({b.count})" for b in self.bins if b)


def main(command: str) -> None:
    parser = MeasureParser(__doc__, "model", "seed", "json")
    parser.add_count("--prompts", 200, "The decisions of each task.")
    args = parser.parsed()
    engine = dlm.Engine.load(args.model)
    print_rows(report(engine, args.prompts, args.seed), args.json)


def report(engine: dlm.Engine, n: int, seed: int) -> list[CalibrationRow]:
    """Return a row for each task and way of deciding."""
    rows = []
    for task, make in (("words", word), ("fields", field_value)):
        random = Random(f"calibration/{task}/{seed}")
        cases = [make(random) for _ in range(n)]
        written = generated(engine, cases, seed)
        rows += [measured(engine, task, cases, by, written, seed) for by in get_args(By)]
    return rows


def word(random: Random) -> LabelledPrompt:
    item = choice(random, "heldout")
    return LabelledPrompt(item.prompt, list((item.schema or {})["enum"]), str(item.value))


def field_value(random: Random) -> LabelledPrompt:
    """Draw a text with a string field. The labels are its value and three others of its kind."""
    draw = Draw(random, "heldout")
    while True:
        domain = random.choice(patterns.domains(False))
        sentences, values, _ = texts_of(domain, "heldout", draw)
        strings = [name for name in values if domain.fields[name].kind in kinds.TEXTS]
        if strings:
            break
    name = random.choice(strings)
    field, right, text = domain.fields[name], values[name].value, " ".join(sentences)
    labels = [right]
    while len(labels) <= _OTHERS:
        other = kinds.draw(field.kind, draw).value
        if other not in labels and other.lower() not in text.lower():
            labels.append(other)
    random.shuffle(labels)
    key = random.choice(field.names).replace("_", " ")
    prompt = f"What is the {key}? Answer with one of {', '.join(labels)}. {text}"
    return LabelledPrompt(prompt, labels, right)


def generated(engine: dlm.Engine, cases: Sequence[LabelledPrompt], seed: int) -> int:
    """Return the number of cases whose generated text is right."""
    requests = [
        dlm.Request(prompt=case.prompt, constraint=dlm.Choice(case.labels), seed=seed + i)
        for i, case in enumerate(cases)
    ]
    results = engine.generate(requests)
    return sum(r.text == case.right for r, case in zip(results, cases, strict=True))


def measured(
    engine: dlm.Engine, task: str, cases: Sequence[LabelledPrompt], by: By, written: int, seed: int
) -> CalibrationRow:
    """Decide all cases `by` a canvas or causally; `written` of them are right when generated."""
    answers = []
    for i, case in enumerate(cases):
        question = dlm.ChoiceQuestion(choices=[dlm.Label(value) for value in case.labels])
        (answer,) = engine.decide(dlm.Request(prompt=case.prompt, seed=seed + i), [question], by)
        if not isinstance(answer, dlm.ChoiceAnswer):
            raise TypeError(f"a choice was answered with {answer!r}")
        answers.append(answer)
    pairs = [*zip(answers, cases, strict=True)]
    hits = [answer.choice == case.right for answer, case in pairs]
    confidences = [answer.confidence for answer in answers]
    return CalibrationRow(
        task=task,
        by=by,
        n=len(cases),
        right=sum(hits),
        generated_right=written,
        brier=sum(brier(answer.probabilities, case.right) for answer, case in pairs) / len(cases),
        ece=ece(confidences, hits),
        mass=sum(answer.mass for answer in answers) / len(answers),
        bins=reliability(confidences, hits),
    )


def brier(probabilities: dict[str, float], right: str) -> float:
    """Return 0 for a certain right label, 2 for a certain wrong one (Brier, 1950)."""
    return sum((p - (value == right)) ** 2 for value, p in probabilities.items())


def reliability(confidences: Sequence[float], hits: Sequence[bool]) -> list[ConfidenceBin | None]:
    """Return the bins by tenths of confidence, the lowest first; 1 is in the last."""
    found: list[ConfidenceBin | None] = []
    for i in range(BINS):
        some = [j for j, p in enumerate(confidences) if min(int(p * BINS), BINS - 1) == i]
        if not some:
            found.append(None)
            continue
        mean = sum(confidences[j] for j in some) / len(some)
        right = sum(hits[j] for j in some) / len(some)
        found.append(ConfidenceBin(count=len(some), confidence=mean, right=right))
    return found


def ece(confidences: Sequence[float], hits: Sequence[bool]) -> float:
    """Return the mean gap between confidence and share of hits over bins (Naeini, 2015)."""
    bins = [one for one in reliability(confidences, hits) if one]
    return sum(b.count * abs(b.confidence - b.right) for b in bins) / len(confidences)
