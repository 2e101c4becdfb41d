"""Write a checkpoint whose experts are NVFP4 from one of floats, as NVIDIA's ModelOpt does.

    python scripts/quantize.py --model DIR --out DIR

Experts take four and a half bits a number, all else stays as it is. Other files of the directory
(tokenizer, chat template, generation settings) are copied. To find how large activations become,
the model denoises a few canvases of its own, for which all of it has to be in memory; with
`--canvases 0` it never is, and the checkpoint is for 16-bit activations only.
"""

import argparse
from pathlib import Path

from command_line import fail

from dlm.errors import DlmError
from dlm.models import ModelError
from dlm.models.quantise import quantise
from dlm.storage import check_device, device_of


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", required=True, metavar="DIR", help="a checkpoint of floats")
    parser.add_argument("--out", required=True, metavar="DIR", help="not there yet, or empty")
    parser.add_argument("--canvases", type=int, default=8, metavar="N", help="of calibration; 8")
    parser.add_argument("--device", default="cpu", help="that the model calibrates on; cpu")
    args = parser.parse_args()
    try:
        check_device(device := device_of(args.device))
        quantise(args.model, args.out, args.canvases, device)
    except (DlmError, ModelError, OSError) as error:
        fail(str(error))
    before, after = size_of(args.model), size_of(args.out)
    print(f"{args.out}: {after:,} bytes of weights, {after / before:.0%} of {before:,}")


def size_of(directory: str) -> int:
    """Bytes of a directory's weights."""
    return sum(path.stat().st_size for path in Path(directory).glob("*.safetensors"))


if __name__ == "__main__":
    main()
