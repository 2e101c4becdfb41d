"""Words for texts that are no JSON: where the fault is, and what would have been right.

Python's own words differ between its versions, and tell a client about limits of Python.
"""

import json
import re

MOST_DIGITS = 4300  # of an integer; Python reads no more
_LONG_NUMBER = re.compile(rf"\d{{{MOST_DIGITS + 1}}}")
_WORDS = {  # by the beginning of Python's words
    "Expecting value": "a value is missing",
    "Expecting property name": "the name of a property in double quotes is missing",
    "Illegal trailing comma": "a comma has nothing after it",
    "Expecting ':'": "a colon is missing",
    "Expecting ','": "a comma or a closing bracket is missing",
    "Extra data": "the value has ended, and more follows",
    "Unterminated string": "a string that begins here does not end",
    "Invalid control character": "a string has a control character, which takes an escape",
    "Invalid \\escape": "a string has a backslash that begins no escape",
    "Invalid \\\\uXXXX": "a string has an escape without four hexadecimal digits",
    "Invalid \\uXXXX": "a string has an escape without four hexadecimal digits",
    "Unexpected UTF-8 BOM": "the text begins with a byte order mark",
}


class NotJsonError(ValueError):
    """Refusal of a text in words for its author."""


def json_problem(text: str | bytes, error: ValueError | RecursionError) -> str:
    """Return why `json.loads` raised `error` for `text`: the place, and what is wrong there."""
    match error:
        case RecursionError():
            return "its lists and objects are nested too deep"
        case json.JSONDecodeError():
            return f"line {error.lineno} column {error.colno}: {json_words(error)}"
        case UnicodeDecodeError():
            return f"byte {error.start} is no UTF-8"
        case UnicodeEncodeError():
            return "a string has a lone surrogate"
        case NotJsonError():
            return str(error)
    decoded = text if isinstance(text, str) else text.decode("utf-8", "replace")
    if number := _LONG_NUMBER.search(decoded):
        line = decoded.count("\n", 0, number.start()) + 1
        column = number.start() - decoded.rfind("\n", 0, number.start())
        return f"line {line} column {column}: a number has over {MOST_DIGITS} digits"
    return "it cannot be read"


def json_words(error: json.JSONDecodeError) -> str:
    """Return what is wrong at the place of an error."""
    known = (words for begin, words in _WORDS.items() if error.msg.startswith(begin))
    return next(known, "it is no value")
