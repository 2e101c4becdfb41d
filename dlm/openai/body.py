"""Models of JSON bodies, and their errors: what was found, where, and what would have been right.

All forms of requests have this in common, whatever their fields are called:

- `JsonModel` and `ClosedModel` are the bases of objects. Their fields are strict: true is no
  integer, and a text is no number. Null counts as left out.
- `Takes`, `ByField` and `Shaped` annotate fields: the words of an error, the choice among models,
  data that is checked but passed on unchanged.
- `validated` validates data, and turns the first problem into a `RequestError`.
- `parse_json` refuses texts that would take long to parse: Python's interpreter runs no other code
  meanwhile, so no request would advance. The time depends on the number of values and keys, far
  more than on the length.

Clients may nest without limit: data of any form is `Any` or `Object`, which is never walked here.
Lists end at their first wrong element.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from dlm.errors import RequestError
from dlm.grammar.json_problems import NotJsonError, json_problem

Body = dict[str, Any]  # of an answer, or a part of it
T = TypeVar("T")

REQUIRED: Any = None  # default of a required field: validation refuses it, missing or null
Object = dict[Any, Any]  # any JSON object; only itself is copied, nothing in it

_WRONG, _REFUSED = "wrong", "refused"  # types of our own errors
_RIGHT = {  # by pydantic's type of error
    "string_type": "text",
    "string_unicode": "text without a lone surrogate",
    "float_type": "a number",
    "finite_number": "a finite number",
    "int_from_float": "a whole number",
    "string_pattern_mismatch": "1 to 128 visible ASCII characters",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
    "too_short": "a list that is not empty",
    "dict_type": "an object",
    "model_type": "an object",
}


def refused_name(name: Any, problem: str) -> PydanticCustomError:
    """Return a validator's error for a field of an object: `problem` follows the field's path."""
    context = {"name": sendable(f"{name!s:.40}"), "problem": sendable(problem)}
    return PydanticCustomError(_REFUSED, _REFUSED, context)


def sendable(text: str) -> str:
    """Escape lone surrogates, which a client may have sent and which cannot be encoded."""
    return text.encode("utf-8", "backslashreplace").decode()


def _not_blank(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError(_WRONG, _WRONG, {"right": "text that is not blank"})
    return text


Words = Annotated[str, AfterValidator(_not_blank)]


class JsonModel(BaseModel):
    """Object in a body. Fields that it does not have are ignored, unless `check_names` refuses
    them."""

    model_config = ConfigDict(strict=True, frozen=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        values = {name: item for name, item in value.items() if item is not None}
        try:
            cls.check_names(values)
        except RequestError as error:
            raise PydanticCustomError(_REFUSED, _REFUSED, {"error": error}) from None
        # A missing field that is null is reported by its alias, and one without a value is not.
        missing = (
            field.alias for field in cls.model_fields.values() if field.alias not in (None, *values)
        )
        return values | dict.fromkeys(missing)

    @classmethod
    def check_names(cls, values: Mapping[str, Any]) -> None:
        """Raise an error for a field that may not be given."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of the fields as clients write them."""
        return tuple(field.alias or name for name, field in cls.model_fields.items())


class ClosedModel(JsonModel):
    """Object in a body that may have no other fields."""

    refused: ClassVar[Mapping[str, str]] = {}  # reasons by names of fields that are not served

    @classmethod
    def check_names(cls, values: Mapping[str, Any]) -> None:
        names = cls.names()
        for name in values:
            if name in cls.refused:
                raise refused_name(name, f"is not supported: {cls.refused[name]}")
            if name not in names:
                raise refused_name(name, f"is unknown here; the fields are {', '.join(names)}")


Each = Annotated[list[T], Field(fail_fast=True)]
Several = Annotated[list[T], Field(fail_fast=True, min_length=1)]


class Takes:
    """Annotation of a field's type: `right` is what errors say that the field must be.

    The type may be a union of types that JSON tells apart, such as `str | list[Part]`. An error
    within a list or an object keeps its own words.
    """

    def __init__(self, right: str):
        self.right = right

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        words = _words(right=self.right)
        types = get_args(source) if get_origin(source) in (Union, UnionType) else (source,)
        kinds = {_kind(type_): type_ for type_ in types}
        if not {list, dict} & kinds.keys():
            return core_schema.custom_error_schema(handler(source), **words)
        choices: dict[str, CoreSchema] = {}
        for kind, type_ in kinds.items():
            schema = handler(source) if len(types) == 1 else handler.generate_schema(type_)
            if kind not in (list, dict):
                schema = core_schema.custom_error_schema(schema, **words)
            choices[_tag(kind)] = schema

        def choose(value: Any) -> str | None:
            return next((_tag(kind) for kind in kinds if isinstance(value, kind)), None)

        return core_schema.tagged_union_schema(choices, choose, **words)


class ByField:
    """Annotation of a union of models: `field` chooses the one that has its value as a literal.
    `right` is what errors say that the field must be; by default the values."""

    def __init__(self, field: str, right: str | None = None):
        self.field, self.right = field, right

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        field, tags = self.field, dict[str, str]()
        for model in get_args(source):
            tags |= dict.fromkeys(get_args(model.model_fields[field].annotation), _tag(model))
        choices = {_tag(model): handler.generate_schema(model) for model in get_args(source)}

        def choose(value: Any) -> str | None:
            chosen = value.get(field) if isinstance(value, dict) else None
            return tags.get(chosen) if isinstance(chosen, str) else None

        values = f"one of {', '.join(tags)}" if len(tags) > 1 else "".join(tags)
        words = _words(right=self.right or values, by=field)
        return core_schema.tagged_union_schema(choices, choose, **words)


def having(field: str, default: str) -> BeforeValidator:
    """Return an annotation of a union by `field`, whose value is `default` where it is left out."""

    def filled(value: Any) -> Any:
        bare = isinstance(value, dict) and value.get(field) is None
        return {**value, field: default} if bare else value

    return BeforeValidator(filled)


class Shaped:
    """Annotation of data that must have the form of `model`, a model or a union of them, and is
    passed on unchanged."""

    def __init__(self, model: Any):
        self.model = model

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        def check(value: Any, validate: Callable[[Any], Any]) -> Any:
            validate(value)
            return value

        schema = handler.generate_schema(self.model)
        return core_schema.no_info_wrap_validator_function(check, schema)


def _words(**context: str) -> Any:
    """Return the arguments of a schema whose own errors have a context for `validated`."""
    return {
        "custom_error_type": _WRONG,
        "custom_error_message": _WRONG,
        "custom_error_context": context,
    }


def _kind(type_: Any) -> type:
    """Return the Python type of the JSON values that a type takes."""
    origin, args = get_origin(type_), get_args(type_)
    if origin in (Annotated, Union, UnionType):
        return _kind(args[0])
    if origin is Literal:
        return type(args[0])
    kind = origin or type_
    return dict if issubclass(kind, BaseModel) else kind


_TAG = "|"  # begins what pydantic's paths name of a union, and no name of a field


def _tag(kind: type) -> str:
    return _TAG + kind.__name__


_FIELD = re.compile(r"[A-Za-z_]+")


def validated(validate: Callable[[Any], T], value: Any, at: str = "", what: str = "the body") -> T:
    """Return `validate(value)`, where `validate` is that of a model or a `TypeAdapter`.

    `at` is the value's path in its body, and `what` the name of a value that has none. Raises
    `RequestError` for the first problem.
    """
    try:
        return validate(value)
    except ValidationError as error:
        raise _first_problem(error, at, what) from None


def _first_problem(error: ValidationError, path: str, what: str) -> RequestError:
    problem = error.errors(include_url=False)[0]
    value, context = problem["input"], problem.get("ctx", {})
    if isinstance(context.get("error"), RequestError):
        return context["error"]
    for step in problem["loc"]:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith(_TAG):
            path = _subpath(path, step)
    right = context.get("right") or _RIGHT.get(problem["type"])
    if "by" in context and isinstance(value, dict):
        path, value = _subpath(path, context["by"]), value.get(context["by"])
    elif "by" in context:
        right = _RIGHT["model_type"]
    elif "expected" in context:  # 'a', 'b' or 'c'
        right = context["expected"].replace("'", "")
    if problem["type"] == _REFUSED:
        path = _subpath(path, context["name"])
        message = f"{path} {context['problem']}"
    else:
        message = _problem(path or what, value, right or "another value")
    field = _FIELD.match(path)
    return RequestError(message, field=field and field[0])


def _subpath(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def wrong(field: str, value: Any, right: str) -> RequestError:
    """Return the error of a `field` whose value must be `right`, and is not."""
    return RequestError(_problem(field, value, right))


def _problem(field: str, value: Any, right: str) -> str:
    if value is None:
        return f"{field} is missing; it must be {right}"
    return f"{field} must be {right}, got {shown(value)}"


def shown(value: Any) -> str:
    """Describe a value in a few words. Not recursive, since clients may nest without limit."""
    match value:
        case None:
            return "missing"
        case dict():
            return f"an object of {', '.join(map(str, value)):.60}" if value else "an empty object"
        case list():
            return "a list" if value else "an empty list"
        case bool():
            return str(value).lower()
        case int() if value.bit_length() > 1000:  # Python writes no integer of 4,301 digits
            return "a number of over 300 digits"
        case _:
            return f"{value!r:.60}"


_MARGIN = 200  # levels of the stack that the encoder of an answer may have fewer than `json_text`


def json_text(field: str, value: Any) -> bytes:
    """Return a value as JSON. Raises `RequestError` for a value that JSON can have and no answer
    can repeat."""
    nested = value
    for _ in range(_MARGIN):
        nested = [nested]
    try:
        text = json.dumps(nested, ensure_ascii=False, allow_nan=False)
        return text.encode()[_MARGIN:-_MARGIN]
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"{field} cannot be repeated in an answer: it has a lone surrogate, or a number "
            "beyond the range of floats, or it is nested too deep",
            field=field,
        ) from error


_PIECE = 32  # elements of a long list that are written at once: no other thread runs meanwhile
_LEVELS = 8  # of an answer, within which its long lists are; a client's own values may nest deeper
compact_json = partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_in_pieces(value: Any, levels: int = _LEVELS) -> Iterator[str]:
    """Yield an answer as JSON in pieces that take little time each, however long its lists are."""
    if not levels or not value or not isinstance(value, dict | list):
        yield compact_json(value)
    elif isinstance(value, dict):
        for i, (name, item) in enumerate(value.items()):
            yield f"{',' if i else '{'}{compact_json(name)}:"
            yield from json_in_pieces(item, levels - 1)
        yield "}"
    elif len(value) > _PIECE:
        for i in range(0, len(value), _PIECE):
            yield f"{',' if i else '['}{compact_json(value[i : i + _PIECE])[1:-1]}"
        yield "]"
    else:
        for i, item in enumerate(value):
            yield "," if i else "["
            yield from json_in_pieces(item, levels - 1)
        yield "]"


LARGE = 65_536  # bytes; bodies of this size or more are read one at a time
MOST_PARTS = 1 << 18  # at most about 50 ms to parse


_NO_PARTS = bytes(set(range(256)) - set(b",[:{"))  # every byte that begins no value


def count_parts(text: str | bytes) -> int:
    """Return a measure of the time and the memory that it takes to parse a JSON text: its commas
    and opening brackets, and twice its colons and opening braces."""
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    parts = data.translate(None, _NO_PARTS)  # one pass over a text that may have megabytes
    return len(parts) + parts.count(b":") + parts.count(b"{")


def parse_json(what: str, text: str | bytes) -> Any:
    """Return the value of `text`, which errors call `what`.

    Raises `RequestError` if `text` is not JSON, or has too many characters that begin a value,
    within strings too: commas and opening brackets, and twice the colons and opening braces, since
    objects take longer.
    """
    if (parts := count_parts(text)) > MOST_PARTS:
        raise RequestError(
            f"{what} has too many values: its commas and opening brackets, and twice its colons "
            f"and opening braces, must be at most {MOST_PARTS}, got {parts}"
        )
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{what} is not JSON: {json_problem(text, error)}") from error


def _no_constant(name: str) -> Any:
    raise NotJsonError(f"{name} is not a value of JSON")
