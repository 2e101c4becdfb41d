"""Tools of a body of `/v1/responses`, in the form of a chat, and names that choose among them.

Tools that a server would run itself (`web_search`, `file_search`, `mcp`, ...) are left out, as in
vLLM: the model is not shown them. Tools of a namespace are shown as `NAMESPACE__NAME`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from dlm.openai.body import (
    REQUIRED,
    Body,
    ByField,
    Each,
    JsonModel,
    Object,
    Several,
    Takes,
    Words,
    validated,
)
from dlm.openai.response_items import flat_name


class FlatTool(JsonModel):
    """Tool that its client runs."""

    name: Annotated[Words, Takes("the name of a tool")] = REQUIRED
    description: str | None = None

    def chat_form(self, name: str) -> Body:
        """Return the tool in the form of a chat, under a `name`."""
        fields = self.model_dump(exclude_none=True)
        kind = fields.pop("type")
        return {"type": kind, kind: {**fields, "name": name}}


class FlatFunction(FlatTool):
    type: Literal["function"] = REQUIRED
    parameters: Object | None = None
    strict: bool | None = None


class FlatCustom(FlatTool):
    type: Literal["custom"] = REQUIRED
    format: Object | None = None


class NamespaceTool(JsonModel):
    type: Literal["namespace"] = REQUIRED
    name: Words = REQUIRED
    tools: Each[Annotated[FlatFunction | FlatCustom, ByField("type")]] = REQUIRED


class HostedTool(JsonModel):
    """Tool that other servers run themselves."""

    type: str = REQUIRED


_TOOL_MODELS = {"function": FlatFunction, "custom": FlatCustom, "namespace": NamespaceTool}
Tool = FlatFunction | FlatCustom | NamespaceTool | HostedTool


class OfferedTools:
    """Tools that the model is shown: those of a body's `tools` and of its items."""

    def __init__(self) -> None:
        self.forms: list[Body] = []  # in the form of a chat
        self.places: list[str] = []  # their JSON pointers in the body
        self.namespaces: dict[str, tuple[str, str]] = {}  # namespace and name by the name shown
        self._lists = 0  # number of lists that have been added
        self._known: dict[str, tuple[int, Body]] = {}  # number of the list, and the form, by name

    def add(self, tools: Sequence[dict[str, Any]], path: str) -> None:
        """Add the tools of the list at `path` in the body. A tool that an earlier list has too,
        unchanged, counts once. Raises `RequestError`."""
        self._lists += 1
        for i, data in enumerate(tools):
            tool, place = _tool(data, f"{path}[{i}]"), f"{_pointer(path)}/{i}"
            if isinstance(tool, FlatTool):
                self._add(tool, tool.name, place)
            elif isinstance(tool, NamespaceTool):
                for j, inner in enumerate(tool.tools):
                    name = flat_name(tool.name, inner.name)
                    self.namespaces[name] = (tool.name, inner.name)
                    self._add(inner, name, f"{place}/tools/{j}")

    def _add(self, tool: FlatTool, name: str, place: str) -> None:
        form = tool.chat_form(name)
        number, earlier = self._known.setdefault(name, (self._lists, form))
        if number == self._lists or not _equal(earlier, form):
            self.forms.append(form)
            self.places.append(place)


def _pointer(path: str) -> str:
    """Return the JSON pointer of a path such as `input[0].tools`."""
    return "/" + path.replace("[", "/").replace("]", "").replace(".", "/")


def _equal(form: Body, other: Body) -> bool:
    try:
        return form == other
    except RecursionError:
        return False


class FlatName(JsonModel):
    type: Literal["function", "custom"] = REQUIRED
    name: str = REQUIRED
    namespace: str | None = None

    @property
    def full_name(self) -> str:
        return flat_name(self.namespace, self.name)


class AllowedNames(JsonModel):
    type: Literal["allowed_tools"] = REQUIRED
    mode: Literal["auto", "required"] = REQUIRED
    tools: Several[FlatName] = REQUIRED


def _tool(tool: dict[str, Any], path: str) -> Tool:
    kind = tool.get("type")
    model = _TOOL_MODELS.get(kind, HostedTool) if isinstance(kind, str) else HostedTool
    return validated(model.model_validate, tool, path)
