"""Jinja environment whose renderings have a bounded effort.

A chat template comes with a checkpoint, which may be a stranger's. The sandbox of Jinja keeps it
from files and from Python's internals, but not from loops for minutes or texts of gigabytes. Here
every operation of a template is charged to the `Effort` of its rendering, and only the filters,
methods and functions with a known cost can be used. This module knows no messages and no
checkpoint.
"""

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sized
from datetime import datetime
from functools import wraps
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

import jinja2
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from dlm.template_effort import (
    CHARACTERS,
    COMPARING_TESTS,
    DEEP_FILTERS,
    SHALLOW_FILTERS,
    Effort,
    EffortError,
    call_method,
    filter_cost,
    operation_cost,
)

_NODES = 8  # nodes of a template's syntax tree that cost a step
_LONGEST_DATE = 200  # characters of a format of dates
EFFORT = "(effort)"  # name of a rendering's effort among its variables: no template can spell it


class Refusal(jinja2.TemplateError):  # it is the template's answer
    """Refusal of the messages by the template itself: its call of `raise_exception`."""


def effort_of(context: Context) -> Effort:
    """Return the effort of the rendering that `context` belongs to."""
    return context.parent[EFFORT]


def _charged_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that charges for `function` and calls it."""
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

    @pass_context
    @wraps(function, assigned=())
    def charged(context: Context, value: Any = None, *args: Any, **kwargs: Any) -> Any:
        effort = effort_of(context)
        if name in DEEP_FILTERS and isinstance(value, Iterable) and not isinstance(value, Sized):
            value = effort.made([*value])  # a generator: its items are to be weighed
        effort.charge(1 + filter_cost(effort, name, value, args, kwargs))
        context_argument = {
            None: (),
            "context": (context,),
            "eval_context": (context.eval_ctx,),
            "environment": (context.environment,),
        }[passed]
        return effort.made(function(*context_argument, value, *args, **kwargs))

    del charged.__wrapped__  # its own mark of what is passed, not the function's
    return charged


def _charged_test(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a test that charges for `function` and calls it."""
    needs_environment = hasattr(function, "jinja_pass_arg")

    @pass_context
    def charged(context: Context, *args: Any, **kwargs: Any) -> Any:
        effort = effort_of(context)
        effort.charge(1)
        if name in COMPARING_TESTS:
            effort.charge_reading(*args, *kwargs.values())
        return function(*(context.environment,) if needs_environment else (), *args, **kwargs)

    return charged


class _Dictionary(Namespace):
    """Namespace that takes no names of Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *positional = args
        attributes = dict(*positional, **kwargs)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(self, attributes)  # type: ignore[misc]

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace cannot have an attribute {name!r:.40}")


def _raise_exception(message: Any) -> None:
    raise Refusal(str(message)[:2000])


def _strftime_now(form: str) -> str:
    if len(form) > _LONGEST_DATE:
        raise EffortError(f"its format of a date has more than {_LONGEST_DATE} characters")
    return datetime.now().strftime(form)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without the escapes for HTML that Jinja's own filter adds."""
    return json.dumps(
        value,
        ensure_ascii=bool(ensure_ascii),
        indent=indent,
        separators=separators,
        sort_keys=bool(sort_keys),
    )


class _Generation(Extension):
    """The tag `generation`, with which trainers mark an assistant's text: what is in it is written
    as if the tag were not there."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """Environment for chat templates: with the functions, filters and tags that transformers gives
    them, as far as their cost is known, and with an `Effort` for each rendering."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # the optimizer would compute constants while it compiles
            finalize=_written,
            extensions=[_Generation, loopcontrols],
        )
        filters = {**self.filters, "tojson": _tojson}
        self.filters = {
            name: _charged_filter(name, filters[name]) for name in SHALLOW_FILTERS | DEEP_FILTERS
        }
        self.tests = {name: _charged_test(name, test) for name, test in self.tests.items()}
        self._functions = {
            "range": self.globals["range"],
            "dict": _dict,
            "namespace": _Dictionary,
            "cycler": Cycler,
            "joiner": Joiner,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        self.globals = dict(self._functions)

    def compiled(self, source: str) -> jinja2.Template:
        """Return the template of `source`. Raises `jinja2.TemplateSyntaxError`."""
        tree = _Charges().visit(self.parse(source))
        tree.set_environment(self)
        return self.from_string(tree)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        effort = effort_of(__context)
        if isinstance(__obj, MethodType) and __obj.__self__ is __self:
            return __obj(effort, *args)  # of a node that `_Charges` has made
        effort.charge(1)
        for name in ("_loop_vars", "_block_vars"):
            if not isinstance(__obj, Macro | BlockReference | LoopContext):
                kwargs.pop(name, None)
        method = getattr(__obj, "__wrapped__", __obj) if isinstance(__obj, FunctionType) else __obj
        if isinstance(method, BuiltinMethodType) and not isinstance(method.__self__, type):
            name = method.__name__
            if method is not __obj:  # the sandbox's own way to format
                method = _Formatter(str(method.__self__), __obj)
            return call_method(effort, method, name, args, kwargs)
        if isinstance(__obj, MethodType) and __obj.__name__ == "changed":
            effort.charge_reading(*args)
        if not __self._may_call(__obj):
            raise SecurityError(f"a template cannot call a {type(__obj).__name__}")
        return effort.made(super().call(__context, __obj, *args, **kwargs))

    def _may_call(self, value: Any) -> bool:
        if isinstance(value, Macro | BlockReference | LoopContext | Joiner | jinja2.Undefined):
            return True
        if isinstance(value, MethodType):
            return isinstance(value.__self__, LoopContext | Cycler)
        return any(value is function for function in self._functions.values())

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        effort = effort_of(context)
        effort.charge(1 + operation_cost(effort, operator, left, right))
        return effort.made(super().call_binop(context, operator, left, right))

    # Calls of these are written into a template's tree by `_Charges`.

    def step(self, effort: Effort, steps: int) -> bool:
        effort.charge(steps)
        return True

    def concatenate(self, effort: Effort, *values: Any) -> str:
        effort.charge_reading(*values)
        return effort.made("".join(map(str, values)))

    def literal(self, effort: Effort, value: Any) -> Any:
        return effort.made(value)

    def key(self, effort: Effort, value: Any) -> Any:
        effort.charge_reading(value)
        return value

    def compare(self, effort: Effort, operators: tuple[str, ...], *values: Any) -> Any:
        """Compare each value with the next one, as Python does."""
        effort.charge(1)
        result: Any = True
        for name, left, right in zip(operators, values, values[1:], strict=False):
            if name in ("in", "notin"):
                searched = right if not isinstance(right, Mapping | range) else ""
                effort.charge_reading(left, searched)
            elif isinstance(left, str) and isinstance(right, str):
                effort.charge(min(len(left), len(right)) // CHARACTERS)
            else:
                effort.charge(min(effort.weight(left), effort.weight(right)))
            result = _OPERATORS[name](left, right)
            if not result:
                break
        return result


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda value, values: value in values,
    "notin": lambda value, values: value not in values,
}


class _Formatter:
    """Method `format` of a text, as the sandbox runs it."""

    def __init__(self, text: str, run: Callable[..., str]):
        self.__self__, self._run = text, run

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        return self._run(*args, **kwargs)


@pass_context
def _written(context: Context, value: Any) -> Any:
    """Charge for a value that is written to the output."""
    effort_of(context).charge_reading(value)
    return value


class _Charges(NodeTransformer):
    """Transformer of a template's syntax tree, which adds the charges that its environment cannot
    make by itself, and refuses tags that need other files."""

    def visit_Template(self, node: nodes.Template) -> nodes.Node:  # noqa: N802
        return self._charged(node)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        cost = _cost(node)
        self.generic_visit(node)
        node.body.insert(0, _step(cost, node))
        if node.test is not None:
            step = _call("step", [nodes.Const(cost)], node)
            node.test = nodes.And(step, node.test).set_lineno(node.lineno)
        return node

    def _charged(self, node: Any) -> Any:
        cost = _cost(node)
        self.generic_visit(node)
        node.body.insert(0, _step(cost, node))
        return node

    visit_Macro = visit_CallBlock = visit_Block = visit_FilterBlock = _charged  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("concatenate", node.nodes, node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        names = nodes.Const(tuple(comparison.op for comparison in node.ops))
        return _call(
            "compare", [names, node.expr, *(comparison.expr for comparison in node.ops)], node
        )

    def _made(self, node: Any) -> Any:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else _call("literal", [node], node)

    visit_List = visit_Tuple = visit_Dict = _made  # noqa: N815

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _call("literal", [node], node)
        node.arg = _key(node.arg)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _key(node.key)
        return node

    def _refused(self, node: nodes.Node) -> nodes.Node:
        name = "autoescape" if "Eval" in (kind := type(node).__name__) else kind.lower()
        raise jinja2.TemplateAssertionError(
            f"the tag {name!r} cannot be used in a chat template",
            node.lineno,
        )

    visit_Include = visit_Import = visit_FromImport = visit_Extends = _refused  # noqa: N815
    visit_EvalContextModifier = visit_ScopedEvalContextModifier = _refused  # noqa: N815


def _cost(node: nodes.Node) -> int:
    """Return the steps of all of `node` run once, without what is charged apart."""
    size = characters = 0
    for part in node.find_all(nodes.Node):
        size += 1
        characters += len(part.data) if isinstance(part, nodes.TemplateData) else 0
    return 1 + size // _NODES + characters // CHARACTERS


def _key(node: nodes.Expr) -> nodes.Expr:
    """Return `node`, a key that is looked up, with a charge: hashing reads all of it."""
    return node if isinstance(node, nodes.Const) else _call("key", [node], node)


def _step(cost: int, node: nodes.Node) -> nodes.Node:
    call = _call("step", [nodes.Const(cost)], node)
    return nodes.ExprStmt(call).set_lineno(node.lineno)


def _call(name: str, args: list[Any], node: nodes.Node) -> Any:
    """Return the call of a method of the environment."""
    method = nodes.EnvironmentAttribute(name)
    return nodes.Call(method, args, [], None, None).set_lineno(node.lineno)
