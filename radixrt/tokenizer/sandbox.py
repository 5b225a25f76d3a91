"""The room in which a chat template runs: immutable, and with a budget, for a template comes from a model file.

Set up the way transformers renders chat templates (trim_blocks, lstrip_blocks, loop controls, `tojson` that escapes
nothing, `raise_exception`, `strftime_now`, `{% generation %}`). Beyond jinja2's sandbox, work is metered: loop
iterations, calls, CPU seconds, and the length of every string that an expression builds, so that a template bomb is an
error and not a hang.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sized
from datetime import datetime
from itertools import islice
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_STEPS = 1_000_000
"""Loop iterations and calls of one rendering."""
MAX_CHARS = 16_000_000
"""Characters of one rendering, and of any string made on the way."""
MAX_CPU_S = 2.0
MAX_WIDTH = 100_000
"""Largest number that may be given to an operation that pads or repeats."""

_WIDE = re.compile(r"%[-+ #0.\d]*(?:\d{6,}|\*)|\{[^{}]*(?:\d{6,}|\{)")
"""A format string, of either kind, with a huge or computed width."""
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})


class TemplateLimit(TemplateError):
    """A rendering went beyond its budget."""


class JsonObject(dict[str, Any]):
    """An object that came as JSON text, which `tojson` writes as it came."""

    def __init__(self, value: Mapping[str, Any], text: str) -> None:
        super().__init__(value)
        self._text = text  # the sandbox does not let templates read such names


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment that chat templates are compiled in; call `start` before each rendering.

    `clock` gives what `strftime_now` tells a template that asks for the date; nothing else depends on it.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, clock: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self.code_generator_class = _Meter
        self._steps = 0
        self._deadline = 0.0
        self.start()
        self.filters["tojson"] = _tojson
        self.filters["_loop"] = _loop
        self.filters["_text"] = _text
        for name in ("center", "indent", "wordwrap", "batch", "slice", "truncate", "format"):
            self.filters[name] = _narrow(self.filters[name])
        del self.globals["lipsum"]
        self.globals["dict"] = _make_dict
        self.globals["namespace"] = _Namespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: clock().strftime(form)

    def start(self) -> None:
        """Give the next rendering a fresh budget."""
        self._steps = MAX_STEPS
        self._deadline = time.thread_time() + MAX_CPU_S

    def spend(self, steps: int) -> None:
        """Take steps from the budget; TemplateLimit when it is used up."""
        self._steps -= steps
        if self._steps < 0 or time.thread_time() > self._deadline:
            raise TemplateLimit("the chat template does too much work for one prompt")

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # names as in jinja2
        __self.spend(1)
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str) and (name in _PADDING or name.startswith("format")):
            _check_width((owner, *args) if name.startswith("format") else args, name)
        return _bounded(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.spend(1)
        if operator == "*":
            _check_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > MAX_WIDTH:
                raise TemplateLimit("the chat template raises a number to too high a power")
        elif operator == "%" and isinstance(left, str):
            _check_width((left,), "format")
        return _bounded(super().call_binop(context, operator, left, right))


class _Meter(CodeGenerator):
    """Puts a meter on each loop and on each string that is put together, when a template is compiled."""

    def visit_Template(self, node: nodes.Template, frame: Any = None) -> None:
        for loop in node.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_loop", [], [], None, None)
        _wrap_texts(node)
        node.set_environment(self.environment)
        super().visit_Template(node, frame)


def _wrap_texts(node: nodes.Node) -> None:
    if isinstance(node, nodes.AssignBlock):  # {% set x %}...{% endset %} joins what is printed inside
        node.filter = nodes.Filter(node.filter, "_text", [], [], None, None)
    for name, value in list(node.iter_fields()):
        children = value if isinstance(value, list) else [value]
        for i, child in enumerate(children):
            if not isinstance(child, nodes.Node):
                continue
            _wrap_texts(child)
            if isinstance(child, nodes.Concat) or (isinstance(child, nodes.Filter) and not child.name.startswith("_")):
                if isinstance(child, nodes.Filter) and child.node is None:
                    continue  # a filter block: its input is what comes later
                wrapped = nodes.Filter(child, "_text", [], [], None, None)
                if isinstance(value, list):
                    value[i] = wrapped
                else:
                    setattr(node, name, wrapped)


@jinja2.pass_context  # pass_context also keeps jinja2 from evaluating it while it compiles
def _loop(context: Any, items: Iterable[Any]) -> Iterable[Any]:
    if not isinstance(items, Sized):
        items = list(islice(items, MAX_STEPS + 1))
    context.environment.spend(len(items))
    return items


@jinja2.pass_context
def _text(context: Any, value: Any) -> Any:
    context.environment.spend(1)
    return _bounded(value)


def _bounded(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_CHARS:
        raise TemplateLimit("the chat template builds too long a text")
    if isinstance(value, list | tuple) and len(value) > MAX_STEPS:
        raise TemplateLimit("the chat template builds too long a list")
    return value


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        size, limit = left.bit_length() + right.bit_length(), MAX_WIDTH
    else:
        length = max((len(side) for side in (left, right) if isinstance(side, str | list | tuple)), default=0)
        size, limit = length * max((side for side in (left, right) if isinstance(side, int)), default=0), MAX_CHARS
    if size > limit:
        raise TemplateLimit("the chat template multiplies too often")


def _check_width(args: Iterable[Any], name: str) -> None:
    for value in args:
        wide = isinstance(value, int) and value > MAX_WIDTH
        if wide or (name.startswith("format") and isinstance(value, str) and _WIDE.search(value)):
            raise TemplateLimit(f"the chat template asks {name!r} for too wide a text")


def _narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    name = function.__name__.removeprefix("do_")

    def narrow(first: Any, *args: Any, **kwargs: Any) -> Any:
        # The first two may be jinja2's own environment and then the text, or the text and an argument.
        widths = (first, *args, *kwargs.values())
        _check_width(widths if name != "format" else widths[:1], name)
        return function(first, *args, **kwargs)

    if hasattr(function, "jinja_pass_arg"):
        narrow.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return narrow


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, characters as they are, keys in the order given."""
    if isinstance(value, JsonObject) and not (ensure_ascii or indent or separators or sort_keys):
        return value._text
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


class _Namespace(Namespace):
    """jinja2's namespace, but nothing in it may be called like a Python internal."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        _public(dict(*rest, **kwargs))
        Namespace.__init__(self, *rest, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _public({name: value})
        super().__setitem__(name, value)


def _public(attributes: Mapping[str, Any]) -> None:
    for name in attributes:
        if name.startswith("_"):
            raise SecurityError(f"a chat template may not set the attribute {name!r}")


class _GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}`, which marks assistant text for training: rendered as its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
