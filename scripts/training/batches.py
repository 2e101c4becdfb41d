"""Batches of the training data, the same for the same seed in whichever process they are made.

Samples are drawn a shelf at a time, sorted by length and cut into batches, so that little is
padding. Other processes can make shelves ahead.
"""

import itertools
import json
import multiprocessing
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from training.directory import CANVAS
from training.lessons import long_sample, sample
from training.objective import TrainingBatch
from training.samples import Sample

CANVASES = 2  # canvases of each sample in a batch
MAX_TOKENS = 384  # longer samples are drawn again, except those of a shelf's batch of long texts
SHELF = 16  # batches that are drawn and sorted together
STEP = 8  # lengths are padded to a multiple, so that few shapes occur
HALF_OPEN = 0.5  # share of samples in which the model itself opens with an empty thought channel
EMPTY_THOUGHT = "<|channel>thought\n<channel|>"

Row = tuple[list[int], list[int], list[bool]]  # tokens of prompt and answer; which are given
Arrays = dict[str, np.ndarray]  # the tensors of a batch


@dataclass(frozen=True, kw_only=True)
class BatchSource:
    """Settings that batches depend on."""

    directory: Path  # of the tokenizer
    seed: int
    size: int  # samples a batch
    context: int = MAX_TOKENS  # most tokens of a sample; from twice `MAX_TOKENS` on, the first
    # batch of each shelf has long texts, and as few of them as attention's memory asks for
    plain: bool = False  # no tools and no reasoning, for a model whose markup has neither
    canvases: int = CANVASES  # of each sample


def batches(
    source: BatchSource, first: int, copying: Callable[[int], float], workers: int
) -> Iterator[TrainingBatch]:
    """Yield batches from number `first` on; `copying(step)` is the share of plain copying."""
    numbers = itertools.count(first // SHELF)
    if workers == 0:
        shelves = (shelf(source, n, copying(n * SHELF)) for n in numbers)
    else:
        shelves = _ahead(source, numbers, copying, workers)
    yield from itertools.islice(itertools.chain.from_iterable(shelves), first % SHELF, None)


def _ahead(
    source: BatchSource, numbers: Iterator[int], copying: Callable[[int], float], workers: int
) -> Iterator[list[TrainingBatch]]:
    """Yield shelves in order; worker processes make some of them ahead."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
        waiting: deque[Future[list[Arrays]]] = deque()
        for n in numbers:
            waiting.append(pool.submit(_packed, source, n, copying(n * SHELF)))
            if len(waiting) == 3 * workers:
                yield [
                    TrainingBatch(
                        **{name: torch.from_numpy(array) for name, array in arrays.items()}
                    )
                    for arrays in waiting.popleft().result()
                ]


def _packed(source: BatchSource, number: int, copying: float) -> list[Arrays]:
    """Return a shelf as arrays, which processes exchange as bytes, not as shared memory."""
    return [
        {name: tensor.numpy() for name, tensor in vars(batch).items()}
        for batch in shelf(source, number, copying)
    ]


@cache
def tokenizer_of(directory: Path) -> Any:
    return AutoTokenizer.from_pretrained(directory)


def shelf(source: BatchSource, number: int, copying: float) -> list[TrainingBatch]:
    """Return `SHELF` batches in random order, each of samples of similar length."""
    random = Random(f"{source.seed}/{number}")
    has_long = source.context >= 2 * MAX_TOKENS
    rows = drawn_rows(source, (SHELF - has_long) * source.size, random, copying)
    rows.sort(key=tokens_of)
    cut = [rows[i : i + source.size] for i in range(0, len(rows), source.size)]
    if has_long:
        cut.append(_long_rows(source, tokenizer_of(source.directory), random))
    return [batch_of(part, random, source.canvases) for part in random.sample(cut, len(cut))]


def drawn_rows(source: BatchSource, count: int, random: Random, copying: float) -> list[Row]:
    """Draw `count` samples of up to `MAX_TOKENS` tokens."""
    tokenizer = tokenizer_of(source.directory)
    rows: list[Row] = []
    while len(rows) < count:
        item = sample(random, "train", copying)
        if source.plain and (item.tools or item.thought is not None):
            continue
        row = encode(tokenizer, item, random, source.plain)
        if tokens_of(row) <= MAX_TOKENS:
            rows.append(row)
    return rows


def _long_rows(source: BatchSource, tokenizer: Any, random: Random) -> list[Row]:
    """Draw a batch of long texts, whose attention has no more scores than that of any other."""
    count = max(1, source.size * MAX_TOKENS**2 // source.context**2)
    rows: list[Row] = []
    while len(rows) < count:
        row = encode(tokenizer, long_sample(random, "train", source.context), random)
        if MAX_TOKENS < tokens_of(row) <= source.context:
            rows.append(row)
    return rows


def tokens_of(row: Row) -> int:
    prompt, answer, _ = row
    return len(prompt) + len(answer)


def batch_of(rows: list[Row], random: Random, canvases_each: int = CANVASES) -> TrainingBatch:
    size, longest = len(rows), max(map(tokens_of, rows))
    T = longest + -longest % STEP
    tokens = torch.zeros(size, T, dtype=torch.long)
    given = torch.zeros(size, T, dtype=torch.bool)
    canvases = torch.zeros(size, canvases_each, CANVAS, dtype=torch.long)
    starts = torch.zeros(size, canvases_each, dtype=torch.long)
    for i, (prompt, answer, known) in enumerate(rows):
        end = len(prompt) + len(answer)
        tokens[i, :end] = torch.tensor(prompt + answer)
        given[i, len(prompt) : end] = torch.tensor(known)
        padded = answer + [0] * (-len(answer) % CANVAS)
        blocks = range(0, len(padded), CANVAS)
        filled = [min(CANVAS, len(answer) - begin) for begin in blocks]  # not padding
        for k, begin in enumerate(random.choices(blocks, filled, k=canvases_each)):
            canvases[i, k] = torch.tensor(padded[begin : begin + CANVAS])
            starts[i, k] = len(prompt) + begin
    return TrainingBatch(
        tokens=tokens,
        lengths=torch.tensor([len(p) + len(a) for p, a, _ in rows]),
        answers=torch.tensor([len(p) for p, _, _ in rows]),
        canvases=canvases,
        starts=starts,
        given=given,
        weights=torch.ones(size),
    )


def encode(tokenizer: Any, item: Sample, random: Random, plain: bool = False) -> Row:
    """Return a sample's prompt and answer as tokens, and which answer tokens are given.

    The answer ends with its stop token. Given are the keys that the prompt does not name. `plain`
    ones have no thought channel.
    """
    prompt = tokenizer.apply_chat_template(
        item.messages,
        tools=item.tools or None,
        enable_thinking=item.thought is not None,
        add_generation_prompt=True,
        tokenize=False,
    )
    answer = item.answer + ("<|tool_response>" if item.task == "tool" else "<turn|>")
    if item.thought is not None:
        answer = f"<|channel>thought\n{item.thought}<channel|>{answer}"
    elif plain:
        pass
    elif random.random() < HALF_OPEN:
        answer = EMPTY_THOUGHT + answer
    else:
        prompt += EMPTY_THOUGHT
    question = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    answered = tokenizer(answer, add_special_tokens=False, return_offsets_mapping=True)
    spans = [span for key in item.unasked for span in spans_of_key(key, answer, item.task)]
    given = [any(a <= c and d <= b for a, b in spans) for c, d in answered["offset_mapping"]]
    return question, answered["input_ids"], given


def spans_of_key(key: str, answer: str, task: str = "extract") -> list[tuple[int, int]]:
    """Return where JSON has a key, without its quotes, which the model still has to learn, or where
    a call of a `tool` has it, bare."""
    if task == "tool":
        return [match.span() for match in re.finditer(rf"(?<=[{{,]){re.escape(key)}(?=:)", answer)]
    name = re.escape(json.dumps(key, ensure_ascii=False)[1:-1])
    return [match.span() for match in re.finditer(rf'(?<=[{{,\s]"){name}(?=":)', answer)]
