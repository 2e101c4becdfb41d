"""What a user may ask the output to be: a value of a JSON schema."""

import json
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import xgrammar as xgr
from jsonschema import exceptions, validators
from pydantic import BaseModel
from referencing import Registry
from referencing.exceptions import Unresolvable

from dlm.grammar.errors import InvalidGrammarError, InvalidValueError
from dlm.grammar.kinds.spec import Spec
from dlm.grammar.schema.pointer import pointer
from dlm.grammar.schema.strings import spelled
from dlm.grammar.schema.writer import Enforceable, enforceable
from dlm.grammar.vocabulary import Vocabulary

# The character rule of strings with a minimal or maximal length lets control characters through,
# which JSON forbids (RFC 8259, section 7), and no escapes. Here long strings have those that are
# needed: one spelling of each character, so that no key can be written twice.
_LOOSE = re.compile(r'^(\S+) ::= \(\(\[\^\\"\\\\\\r\\n\]\)\)$', re.MULTILINE)
_STRICT = r"[^\0-\x1f\"\\]"
_NEEDED = r'"\\" [\"\\bfnrt]'

# The rule of a key that is none of the named ones would let it be one of them in escapes.
_ESCAPED = re.compile(
    r'^(\S+_addl_key_\d+ ::= .*?) \| \("\\\\" basic_escape basic_string_sub\)', re.MULTILINE
)
_TOLD = 5  # places that an error names


@dataclass(frozen=True)
class JsonSchema(Spec):
    """A JSON value that a schema accepts.

    `schema` is a parsed schema, its JSON text, or a pydantic model. Properties come in the
    schema's order, and only those that it names. `max_whitespace` bounds each run of whitespace
    between the JSON's own tokens: enough for the model's own indentation, never an endless run.
    A grammar cannot enforce every keyword: `unenforced` ones are refused, or left to the check of
    the finished value.

    Raises `InvalidGrammarError` for what is no valid JSON schema, for a `$ref` that leads out of
    the document, and for unenforced keywords that are to be refused.
    """

    schema: Mapping[str, Any] | bool | str | type[BaseModel]
    max_whitespace: int = 8  # characters; indentation by 2 down to four levels
    unenforced: Literal["refuse", "check"] = "refuse"

    kind = "JSON schema"

    def __post_init__(self) -> None:
        if self.max_whitespace < 1:
            raise InvalidGrammarError(
                self.kind, f"max_whitespace is {self.max_whitespace}, not 1 or more"
            )
        if self.unenforced not in ("refuse", "check"):
            raise InvalidGrammarError(
                self.kind, f"unenforced is {self.unenforced!r:.40}, not 'refuse' or 'check'"
            )
        if isinstance(self.parsed, dict) and not isinstance(self.parsed.get("$schema", ""), str):
            raise InvalidGrammarError(self.kind, "it names a dialect by its URI", "/$schema")
        try:
            _validator(self.parsed).check_schema(self.parsed)
            found = self._enforceable
        except exceptions.SchemaError as error:
            raise InvalidGrammarError(
                self.kind, error.message, pointer(*error.absolute_path) or "/"
            ) from error
        except RecursionError as error:
            raise InvalidGrammarError(self.kind, "nested too deeply") from error
        except re.error as error:
            raise InvalidGrammarError(self.kind, f"a pattern is no regex: {error}") from error
        problems = found.unresolved + (found.inexact if self.unenforced == "refuse" else ())
        if problems:
            (where, reason), *others = problems
            more = [f"{place or '/'}: {why}" for place, why in others[: _TOLD - 1]]
            more += ["..."] * (len(others) >= _TOLD)
            raise InvalidGrammarError(self.kind, "; ".join([reason, *more]), where or "/")

    @cached_property
    def parsed(self) -> dict[str, Any] | bool:
        """The schema as plain JSON data."""
        if isinstance(self.schema, type) and issubclass(self.schema, BaseModel):
            return self.schema.model_json_schema()
        try:
            text = self.schema if isinstance(self.schema, str) else json.dumps(self.schema)
            parsed = json.loads(text)
        except json.JSONDecodeError as error:
            where = f"line {error.lineno} column {error.colno}"
            raise InvalidGrammarError(self.kind, f"not JSON: {error.msg}", where) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidGrammarError(self.kind, f"not JSON data: {error}") from error
        if not isinstance(parsed, dict | bool):
            raise InvalidGrammarError(self.kind, f"a schema is an object, not {parsed!r:.40}")
        return parsed

    @cached_property
    def _enforceable(self) -> Enforceable:
        return enforceable(self.parsed)

    @property
    def enforced(self) -> dict[str, Any] | bool:
        """The schema as xgrammar enforces it to the letter, `unenforced` keywords apart."""
        return self._enforceable.schema

    @property
    def checked(self) -> bool:
        return bool(self._enforceable.inexact)

    @property
    def source(self) -> dict[str, Any] | bool:
        return self.parsed

    @property
    def key(self) -> Hashable:
        return self.kind, json.dumps(self.enforced), self.max_whitespace

    def grammar(self, vocabulary: Vocabulary) -> xgr.Grammar:
        schema = json.dumps(self.enforced)
        grammar = xgr.Grammar.from_json_schema(
            schema, any_whitespace=True, max_whitespace_cnt=self.max_whitespace
        )
        return tightened(grammar, vocabulary.far)

    def value(self, text: str) -> Any:
        """What `text` says as JSON; `InvalidValueError` if it is none, or the schema refuses it.

        None where Python cannot hold the value to check it: an integer of over 4,300 digits, a
        thousand nested arrays. A `$ref` to another document is never followed.
        """
        schema = self.parsed
        try:
            value = json.loads(text)
            checker = _validator(schema)(schema, registry=Registry())
            problem = exceptions.best_match(checker.iter_errors(value))
        except json.JSONDecodeError as error:
            raise InvalidValueError(f"the text is not JSON: {error}") from error
        except Unresolvable as error:
            raise InvalidValueError(f"the JSON cannot be checked: {error}") from error
        except (ValueError, RecursionError):
            return None
        if problem is not None:
            raise InvalidValueError(
                f"the JSON does not fit the schema at {problem.json_path}: {problem.message:.200}",
                list(problem.absolute_path),
            )
        return value


def tightened(grammar: xgr.Grammar, far: int) -> xgr.Grammar:
    """`grammar`, made of JSON schemas, where xgrammar's rules of strings let too much through.

    Strings of more than `far` characters may have escapes, too.
    """
    rules = str(grammar)

    def written(rule: re.Match[str]) -> str:
        bound = re.search(rf"\b{re.escape(rule[1])}\{{(\d+), (-?\d+)\}}", rules)
        long = bound is not None and int(bound[1]) <= far and not 0 <= int(bound[2]) <= far
        return f"{rule[1]} ::= (({_STRICT}){f' | ({_NEEDED})' * long})"

    tight, loose = _LOOSE.subn(written, rules)
    tight, escaped = _ESCAPED.subn(r"\1", tight)
    tight, words = spelled(tight, far)
    return xgr.Grammar.from_ebnf(tight) if loose or escaped or words else grammar


def _validator(schema: dict[str, Any] | bool) -> Any:
    return validators.validator_for(schema, default=validators.Draft202012Validator)
