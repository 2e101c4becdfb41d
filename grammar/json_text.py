"""JSON data that a user gives, as text or as Python's own, and finished JSON texts."""

import json
import math
import re
from typing import Any

from dlm.grammar.errors import InvalidGrammarError, InvalidValueError, UncheckableError

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


def parsed(text: str) -> Any:
    """Return the JSON value of `text`.

    Raises `InvalidValueError` if it is not JSON, or JSON that parsers read differently: a repeated
    key, a number beyond a double, half a surrogate pair. Raises `UncheckableError` beyond Python's
    limits.
    """
    try:
        value = _DECODER.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InvalidValueError(f"the text is not JSON: {error}") from error
    except UnicodeEncodeError as error:
        raise InvalidValueError("a string has half a surrogate pair") from error
    except ValueError as error:  # including InvalidValueError
        if isinstance(error, InvalidValueError):
            raise
        raise UncheckableError(f"the JSON cannot be read: {error}") from error
    except RecursionError as error:
        raise UncheckableError("the JSON is nested too deeply to be read") from error
    return value


def decoded(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value that begins at `text[at]`, and the index of its end.

    Raises `ValueError` if `parsed` would refuse it, and `RecursionError`.
    """
    value, end = _DECODER.raw_decode(text, at)
    if "\\u" in text[at:end]:
        json.dumps(value, ensure_ascii=False).encode()
    return value, end


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        again = next(name for i, name in enumerate(names) if name in names[:i])
        raise InvalidValueError(f"an object has the key {again!r:.80} twice", [again])
    return value


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidValueError(f"the number {text:.40} is larger than a double can be")
    return value


def _constant(text: str) -> float:
    raise InvalidValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
