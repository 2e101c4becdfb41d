"""The routes in the form of OpenAPI, and a page of them that loads nothing.

Schemas of bodies are made from the models that check them, so a field that is served is described.
"""

import json
import re
from collections.abc import Mapping
from html import escape
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from dlm.anthropic.messages import MessagesBody, PromptBody
from dlm.openai.batches import BatchBody
from dlm.openai.body import Body, JsonModel
from dlm.openai.decisions import DecisionFields
from dlm.openai.other_fields import ACCEPTED, NEUTRAL, RequestModel
from dlm.openai.requests import ChatBody, CompletionBody
from dlm.openai.responses import ResponsesBody
from dlm.openai.tokenizing import DetokenizeBody, TokenizeBody, TokenizeChatBody

_BODIES: Mapping[str, tuple[str, tuple[type[JsonModel], ...]]] = {
    "/v1/chat/completions": ("Answer a conversation.", (ChatBody,)),
    "/v1/completions": ("Continue a text.", (CompletionBody,)),
    "/v1/responses": ("Answer in the form of OpenAI's Responses.", (ResponsesBody,)),
    "/v1/responses/input_tokens": ("Count the tokens of a response's input.", (ResponsesBody,)),
    "/v1/messages": ("Answer in the form of Anthropic's Messages.", (MessagesBody,)),
    "/v1/messages/count_tokens": ("Count the tokens of a message's prompt.", (PromptBody,)),
    "/v1/decisions": ("Answer typed questions with probabilities.", (DecisionFields,)),
    "/v1/batches": ("Answer all lines of a file.", (BatchBody,)),
    "/tokenize": ("Convert a text or a conversation to tokens.", (TokenizeBody, TokenizeChatBody)),
    "/detokenize": ("Convert tokens to a text.", (DetokenizeBody,)),
}
_STORED = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
_READ: Mapping[str, Mapping[str, str]] = {
    "/v1/responses/{id}": {"get": "Read a stored response.", "delete": "Delete a response."},
    "/v1/responses/{id}/input_items": {"get": "Read the input of a stored response."},
    "/v1/files": {"get": "List files.", "post": "Upload a file, as multipart/form-data."},
    "/v1/files/{id}": {"get": "Describe a file.", "delete": "Delete a file."},
    "/v1/files/{id}/content": {"get": "Read a file."},
    "/v1/batches": {"get": "List batches."},
    "/v1/batches/{id}": {"get": "Describe a batch."},
    "/v1/batches/{id}/cancel": {"post": "Cancel a batch."},
    "/v1/models": {"get": "List the names of the model."},
    "/v1/models/{id}": {"get": "Describe one name of the model."},
    "/health": {"get": "Return 200 if requests are served, else 503."},
    "/metrics": {"get": "Return metrics in Prometheus's form."},
    "/version": {"get": "Return the version."},
}
_BATCHES = re.compile("/v1/(files|batches)(/|$)")
_PREFIX = "#/components/schemas/"


class _Schemas(GenerateJsonSchema):
    """Generator in which a field is required unless null counts as left out, as bodies have it."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        schema = field["schema"]
        if schema["type"] != "default":
            return super().field_is_required(field, total)
        return schema.get("default") is None and schema["schema"]["type"] != "nullable"

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if schema.get("default") is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)


def _components(paths: Mapping[str, Body]) -> dict[str, Any]:
    """Return the schemas of the bodies of `paths`, and of the objects within them, by name."""
    models = dict.fromkeys(model for path in _BODIES if path in paths for model in _BODIES[path][1])
    inputs = [(model, "validation", model.__pydantic_core_schema__) for model in models]
    generator: Any = _Schemas(ref_template=f"{_PREFIX}{{model}}")
    schemas = generator.generate_definitions(inputs)[1]
    for model in models:
        if issubclass(model, RequestModel):
            schemas[model.__name__]["properties"] |= _accepted(model)
    return schemas


def _accepted(model: type[JsonModel]) -> Body:
    """Return the schemas of fields that a body may have without an effect."""
    names = model.names()
    accepted: Body = {
        name: {"description": "Without an effect."} for name in sorted(ACCEPTED - {*names})
    }
    for name, (values, reason) in NEUTRAL.items():
        if name not in names:
            accepted[name] = {"enum": [*values, None], "description": f"Not supported: {reason}."}
    return accepted


def _operation(summary: str, schema: Body | None = None, path: str = "") -> Body:
    operation: Body = {
        "summary": summary,
        "responses": {
            "200": {"description": "the answer"},
            "default": {"description": "an error, as `error.message`"},
        },
    }
    if schema is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    if "{id}" in path:
        operation["parameters"] = [_STORED]
    if path.startswith("/v1/") or schema is not None:
        operation["security"] = [{"key": []}]
    return operation


def document(prefix: str = "", batches: bool = True) -> Body:
    """Return the document of a server whose paths a proxy shows below `prefix`, and which serves
    files and `batches` or not."""
    paths: dict[str, Body] = {}
    for path, (summary, models) in _BODIES.items():
        schemas = [{"$ref": _PREFIX + model.__name__} for model in models]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        paths[path] = {"post": _operation(summary, schema, path)}
    for path, operations in _READ.items():
        described = paths.setdefault(path, {})
        for method, summary in operations.items():
            described[method] = _operation(summary, None, path)
    if not batches:
        paths = {path: described for path, described in paths.items() if not _BATCHES.match(path)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "dlm", "version": version("dlm")},
        "servers": [{"url": prefix or "/"}],
        "paths": paths,
        "components": {
            "schemas": _components(paths),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
color-scheme:light dark}code{font-size:.92em}summary{cursor:pointer;padding:.3rem 0}
td{vertical-align:top;padding:.15rem .8rem .15rem 0}table{border-collapse:collapse}"""


def docs_page(described: Body) -> str:
    """Return a page of a `document`: each route with the fields of its body."""
    schemas = described["components"]["schemas"]
    parts = []
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            title = f"<code>{method.upper()} {escape(path)}</code> {escape(operation['summary'])}"
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            tables = [
                _table(schemas[body["$ref"].removeprefix(_PREFIX)])
                for body in schema.get("anyOf", [schema] if schema else [])
            ]
            if tables:
                parts.append(f"<details><summary>{title}</summary>{''.join(tables)}</details>")
            else:
                parts.append(f"<p>{title}</p>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>dlm: API</title>'
        f"<style>{_STYLE}</style><h1>API</h1>"
        '<p>The same as <a href="openapi.json">OpenAPI</a>.</p>' + "".join(parts) + "</html>"
    )


def _table(schema: Body) -> str:
    required = schema.get("required", ())
    rows = []
    for name, field in schema["properties"].items():
        kind = _kind(field) + (", required" if name in required else "")
        text = escape(field.get("description", ""))
        rows.append(f"<tr><td><code>{escape(name)}</code><td>{escape(kind)}<td>{text}")
    return f"<table>{''.join(rows)}</table>"


def _kind(field: Body) -> str:
    """Return the type of a field in a few words."""
    if "enum" in field or "const" in field:
        values = field.get("enum", [field.get("const")])
        return " or ".join(json.dumps(value) for value in values if value is not None) or "null"
    if "$ref" in field:
        return field["$ref"].removeprefix(_PREFIX)
    kinds = [_kind(option) for option in (*field.get("anyOf", ()), *field.get("oneOf", ()))]
    kinds = [kind for kind in dict.fromkeys(kinds) if kind != "null"]
    return " or ".join(kinds) or str(field.get("type", "any"))
