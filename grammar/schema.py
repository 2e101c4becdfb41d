"""What a user may ask the output to be: a value of a JSON schema."""

import json
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import xgrammar as xgr
from jsonschema import exceptions, validators
from pydantic import BaseModel
from referencing import Registry
from referencing.exceptions import Unresolvable

from dlm.grammar.errors import InvalidGrammarError, InvalidValueError
from dlm.grammar.spec import Spec
from dlm.grammar.vocabulary import Vocabulary

# The character rule of strings with a minimal or maximal length lets control characters through,
# which JSON forbids (RFC 8259, section 7); the one of plain strings does not.
_LOOSE = re.compile(r'^(\S+ ::= )\(\(\[\^\\"\\\\\\r\\n\]\)\)$', re.MULTILINE)
_STRICT = r'\1(([^\\0-\\x1f\\"\\\\]))'


@dataclass(frozen=True)
class JsonSchema(Spec):
    """A JSON value that a schema accepts.

    `schema` is a parsed schema, its JSON text, or a pydantic model. Properties come in the
    schema's order, and only those that it names. `max_whitespace` bounds each run of whitespace
    between the JSON's own tokens: enough for the model's own indentation, never an endless run.

    Raises `InvalidGrammarError` for what is no valid JSON schema.
    """

    schema: Mapping[str, Any] | bool | str | type[BaseModel]
    max_whitespace: int = 8  # characters; indentation by 2 down to four levels

    kind = "JSON schema"

    def __post_init__(self) -> None:
        if self.max_whitespace < 1:
            raise InvalidGrammarError(
                self.kind, f"max_whitespace is {self.max_whitespace}, not 1 or more"
            )
        parsed = self.parsed
        try:
            validators.validator_for(parsed).check_schema(parsed)
        except exceptions.SchemaError as error:
            raise InvalidGrammarError(self.kind, error.message, _pointer(error)) from error

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

    @property
    def key(self) -> Hashable:
        return self.kind, json.dumps(self.parsed), self.max_whitespace

    def grammar(self, vocabulary: Vocabulary) -> xgr.Grammar:
        grammar = xgr.Grammar.from_json_schema(
            json.dumps(self.parsed), any_whitespace=True, max_whitespace_cnt=self.max_whitespace
        )
        rules, loose = _LOOSE.subn(_STRICT, str(grammar))
        return xgr.Grammar.from_ebnf(rules) if loose else grammar

    def value(self, text: str) -> Any:
        """What `text` says as JSON; `InvalidValueError` if it is none, or the schema refuses it.

        None where Python cannot hold the value to check it: an integer of over 4,300 digits, a
        thousand nested arrays. A `$ref` to another document is never followed.
        """
        schema = self.parsed
        try:
            value = json.loads(text)
            checker = validators.validator_for(schema)(schema, registry=Registry())
            problem = exceptions.best_match(checker.iter_errors(value))
        except json.JSONDecodeError as error:
            raise InvalidValueError(f"the text is not JSON: {error}") from error
        except Unresolvable as error:
            raise InvalidValueError(f"the JSON cannot be checked: {error}") from error
        except (ValueError, RecursionError):
            return None
        if problem is not None:
            raise InvalidValueError(
                f"the JSON does not fit the schema at {problem.json_path}: {problem.message:.200}"
            )
        return value


def _pointer(error: exceptions.SchemaError) -> str:
    return "/" + "/".join(str(part) for part in error.absolute_path)
