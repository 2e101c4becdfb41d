"""Write the mean of two models' weights: a network before and after it was trained on other data.

    python scripts/average_weights.py BEFORE AFTER --out DIR

Further training on new data forgets some of the old; weights between the two models do well on
both (arXiv:2109.01903). All other files are copied from AFTER, except the state of a training run.
"""

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor
from training.directory import STATE

from dlm.cli.command_line import CommandParser, fail
from dlm.models import ModelError
from dlm.models.tensor_files import tensors


def main() -> None:
    args = arguments()
    try:
        before, after = (dict(tensors(each)) for each in (args.before, args.after))
        mean = averaged(before, after, args.share)
        others = shutil.ignore_patterns("*.safetensors", "*.safetensors.index.json", STATE)
        shutil.copytree(args.after, args.out, ignore=others, dirs_exist_ok=True)
        save_file(mean, Path(args.out) / "model.safetensors", metadata={"format": "pt"})
    except (ModelError, OSError, ValueError) as error:
        fail(str(error))


def averaged(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], share: float
) -> dict[str, Tensor]:
    """Return tensors `share` of the way from `before` to `after`, in the types of `after`.

    Raises `ValueError` if names or shapes differ, or if numbers are packed.
    """
    packed = [n for each in (before, after) for n, t in each.items() if not t.is_floating_point()]
    if packed:
        raise ValueError(f"{min(packed)} is not of floats: quantised weights have no mean")
    unlike = [n for n in {*before, *after} if _shape(before, n) != _shape(after, n)]
    if unlike:
        raise ValueError(f"{min(unlike)} is not in both models, or not of one shape")
    return {
        name: ((1 - share) * before[name].float() + share * tensor.float()).type_as(tensor)
        for name, tensor in after.items()
    }


def _shape(tensors: Mapping[str, Tensor], name: str) -> tuple[int, ...] | None:
    return tuple(tensors[name].shape) if name in tensors else None


def arguments() -> argparse.Namespace:
    parser = CommandParser(__doc__)
    add = parser.add_argument
    add("before", metavar="BEFORE", help="A model directory.")
    add("after", metavar="AFTER", help="Another, whose other files are copied.")
    purpose = "The share of the way to AFTER, 0 to 1."
    add("--share", type=float, default=0.5, metavar="S", help=purpose)
    add("--out", required=True, metavar="DIR", help="The directory of the mean.")
    args = parser.parse_args()
    if not 0 <= args.share <= 1:
        parser.error(f"--share is {args.share}: it is from 0 to 1")
    return args


if __name__ == "__main__":
    main()
