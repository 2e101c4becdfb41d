"""Check of numbers in settings."""

import math
from typing import Any


def is_number(value: Any, kind: Any = int | float) -> bool:
    """Return whether `value` is a finite number of this kind, and no boolean."""
    return isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
