"""JSON data that a user gives, as text or as Python's own."""

import json
import re
from typing import Any

from dlm.grammar.errors import InvalidGrammarError

SURROGATES = re.compile("[\ud800-\udfff]")  # halves of pairs, which are no text


def plain(kind: str, given: Any, where: str = "") -> Any:
    """Return a copy of JSON data, or the value of JSON text. Infinity and NaN are kept.

    Raises `InvalidGrammarError` of this `kind`, at `where` and the place in the text, if `given`
    is not JSON.
    """
    try:
        read = json.loads(given if isinstance(given, str) else json.dumps(given))
        json.dumps(read, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        place = f"{where} line {error.lineno} column {error.colno}".strip()
        raise InvalidGrammarError(kind, f"not JSON: {error.msg}", place) from error
    except UnicodeEncodeError as error:
        raise InvalidGrammarError(kind, "half a surrogate pair is no text", where) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidGrammarError(kind, f"not JSON data: {error}", where) from error
    return read
