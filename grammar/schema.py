"""What a user may ask the output to be: a value of a JSON schema."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jsonschema import exceptions, validators
from pydantic import BaseModel

from dlm.grammar.errors import InvalidGrammarError

_KIND = "JSON schema"


@dataclass(frozen=True)
class JsonSchema:
    """A JSON value that a schema accepts.

    `schema` is a parsed schema, its JSON text, or a pydantic model. Properties come in the
    schema's order, and only those that it names. `max_whitespace` bounds each run of whitespace
    between the JSON's own tokens: enough for the model's own indentation, never an endless run.

    Raises `InvalidGrammarError` for what is no valid JSON schema.
    """

    schema: Mapping[str, Any] | bool | str | type[BaseModel]
    max_whitespace: int = 8  # characters; indentation by 2 down to four levels

    def __post_init__(self) -> None:
        if self.max_whitespace < 1:
            raise InvalidGrammarError(
                _KIND, f"max_whitespace is {self.max_whitespace}, not 1 or more"
            )
        parsed = self.parsed
        try:
            validators.validator_for(parsed).check_schema(parsed)
        except exceptions.SchemaError as error:
            raise InvalidGrammarError(_KIND, error.message, _pointer(error)) from error

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
            raise InvalidGrammarError(_KIND, f"not JSON: {error.msg}", where) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidGrammarError(_KIND, f"not JSON data: {error}") from error
        if not isinstance(parsed, dict | bool):
            raise InvalidGrammarError(_KIND, f"a schema is an object, not {parsed!r:.40}")
        return parsed

    @property
    def source(self) -> str:
        """The schema as JSON text, its properties in the user's order."""
        return json.dumps(self.parsed)


def _pointer(error: exceptions.SchemaError) -> str:
    return "/" + "/".join(str(part) for part in error.absolute_path)
