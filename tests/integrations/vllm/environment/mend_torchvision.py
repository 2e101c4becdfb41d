"""Register the schemas of torchvision's operators if its library does not load.

The release on PyPI is built for CUDA. transformers imports it, and calls none of its operators.
"""

from importlib.util import find_spec
from pathlib import Path

_MARK = "# without its library"
_LINES = f"""

{_MARK}: schemas alone, so that the rest of torchvision can be imported
if not _has_ops():
    for _name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{{_name}}", "(Tensor dets, Tensor scores, float threshold) -> Tensor"
        )
"""


def main() -> None:
    """Append the schemas to the installed file, once."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise SystemExit("torchvision is not installed")
    path = Path(spec.origin).with_name("extension.py")
    source = path.read_text()
    if _MARK not in source:
        path.write_text(source + _LINES)


if __name__ == "__main__":
    main()
