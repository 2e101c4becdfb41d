"""Write a checkpoint whose experts are NVFP4 from one of floats, as NVIDIA's ModelOpt does.

    dlm quantize --model DIR --out DIR

Experts take four and a half bits a number, all other weights stay as they are. The directory's
other files (tokenizer, chat template, generation settings) are copied. To find how large
activations become, the model denoises a few canvases, for which all of it has to fit in memory.
`--canvases 0` skips this, and the checkpoint is for 16-bit activations only.
"""

from pathlib import Path

from dlm.cli.command_line import CommandParser, fail
from dlm.errors import DlmError
from dlm.models.quantise import quantise
from dlm.storage import check_device, device_of


def main() -> None:
    parser = CommandParser(__doc__)
    add = parser.add_argument
    purpose = "The directory of a checkpoint whose weights are floats."
    add("--model", required=True, metavar="DIR", help=purpose)
    purpose = "Where the new checkpoint goes: a directory that does not exist, or is empty."
    add("--out", required=True, metavar="DIR", help=purpose)
    purpose = "How many canvases the model denoises to find how large activations become."
    add("--canvases", type=int, default=8, metavar="N", help=purpose)
    add("--device", default="cpu", help="The device on which it denoises them.")
    args = parser.parse_args()
    try:
        check_device(device := device_of(args.device))
        quantise(args.model, args.out, args.canvases, device)
    except (DlmError, OSError) as error:
        fail(str(error))
    before, after = size_of(args.model), size_of(args.out)
    print(f"{args.out}: {after:,} bytes of weights, {after / before:.0%} of {before:,}")


def size_of(directory: str) -> int:
    """Return the bytes of a directory's weights."""
    return sum(path.stat().st_size for path in Path(directory).glob("*.safetensors"))
