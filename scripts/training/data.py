"""The built-in checkpoint's data, from a seed: which task how often."""

from random import Random

from training.draws import Split
from training.extraction import extract
from training.lessons import choice, copy
from training.samples import Sample
from training.tools import tool_call

TASKS = {extract: 0.91, tool_call: 0.04, choice: 0.03, copy: 0.02}


def sample(random: Random, split: Split, copying: float = 0.0) -> Sample:
    """A random sample of any task; a `copying` share of them plain copying."""
    if random.random() < copying:
        return copy(random, split)
    return random.choices(list(TASKS), list(TASKS.values()))[0](random, split)
