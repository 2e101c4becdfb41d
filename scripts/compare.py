"""`dlm compare` from a checkout, on prompts that are drawn anew for each `--seed`."""

from random import Random

from training.extraction import extract

from dlm.cli.compare import main
from dlm.cli.compare.judging import Prompt


def drawn(count: int, seed: int) -> list[Prompt]:
    """Draw prompts of trained sentence patterns, with values that no training sample has."""
    random = Random(f"compare/{seed}")
    samples = (extract(random, "heldout") for _ in range(count))
    return [
        Prompt(id=i, prompt=sample.prompt, schema=sample.schema, expected=sample.value, known=True)
        for i, sample in enumerate(samples)
    ]


if __name__ == "__main__":
    main(drawn)
