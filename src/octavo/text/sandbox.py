"""Where chat templates run: Jinja2's sandbox with what Transformers gives templates, and bounds on what they may use.

A template is code from whoever made the model. The sandbox keeps it from Python's internals; the bounds here keep one
render to a known number of loop rounds and calls and to a known time, and all that it makes to a known size.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import datetime
from functools import wraps
from time import thread_time
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as LoopControls
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS = 1_000_000
"""Loop rounds of one render; a call counts as ten."""
MAX_CPU_S = 5.0
"""Processor time of one render, looked at every few steps: a busy machine changes nothing."""
MAX_SIZE = 16 * 1024 * 1024
"""Characters of a text, items of a list."""
MAX_BITS = 10_000
"""Of a whole number."""
_METER = "meter of this render"
"""A variable's name that no template can write."""


def environment(now: Callable[[], datetime]) -> "Sandbox":
    """A sandbox for templates; `now` is the clock behind `strftime_now`."""
    made = Sandbox(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[LoopControls, Generation])
    del made.globals["lipsum"]
    made.globals |= {"raise_exception": _raise_exception, "strftime_now": lambda form: now().strftime(form)}
    made.filters |= {
        "tojson": _tojson,
        **{name: _checked(made.filters[name], check) for name, check in _FILTERS.items()},
        _COUNTED: _counted,
        _BOUNDED: bounded,
        _JOINED: lambda parts: bounded("".join(map(str, parts))),
    }
    return made


_COUNTED, _BOUNDED, _JOINED = "loop rounds counted", "size bounded", "joined and bounded"


class Generation(Extension):
    """`{% generation %}` marks an assistant's words for training; here its body counts as if the tag were not there."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """Counts loop rounds and calls, and refuses texts, lists and numbers beyond the bounds."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all((nodes.For, nodes.Concat, nodes.AssignBlock)):
            _bound(node)
        return tree

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore
        context.parent[_METER].spend(10)
        method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps str.format
        owner, check = getattr(method, "__self__", None), _METHODS.get(getattr(method, "__name__", ""))
        if isinstance(owner, str) and check is not None:
            check(owner, *args, **kwargs)
        return bounded(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _OPERATORS[operator](left, right)
        return super().call_binop(context, operator, left, right)


def _bound(node: nodes.Node) -> None:
    """Puts the filters of this module around what can grow without a call: loops, `~`, `{% set %}` blocks."""
    if isinstance(node, nodes.For):
        node.iter = _filtered(node.iter, _COUNTED)
    elif isinstance(node, nodes.AssignBlock):
        node.filter = _filtered(node.filter, _BOUNDED)
    elif isinstance(node, nodes.Concat):
        node.nodes = [_filtered(nodes.List(node.nodes, lineno=node.lineno), _JOINED)]


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno if node else 1)


# --- the bounds


class Meter:
    """What one render has used."""

    __slots__ = ("_end_s", "_look_at", "_steps")

    def __init__(self) -> None:
        self._steps = self._look_at = 0
        self._end_s = thread_time() + MAX_CPU_S

    def spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise SecurityError(f"the template takes more than {MAX_STEPS} steps")
        if self._steps >= self._look_at:
            self._look_at = self._steps + 64  # reading the clock costs as much as a few steps
            if thread_time() > self._end_s:
                raise SecurityError(f"the template takes more than {MAX_CPU_S:g} s")


def metered() -> dict[str, Meter]:
    """The variable that one render keeps its account in."""
    return {_METER: Meter()}


@pass_context
def _counted(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    meter: Meter = context.parent[_METER]
    for item in items:
        meter.spend(1)
        yield item


def bounded(value: Any) -> Any:
    if isinstance(value, str | list | tuple):
        _check_size(len(value))
    return value


def _check_size(size: int, limit: int = MAX_SIZE) -> None:
    if size > limit:
        raise SecurityError(f"the template makes something of size {size}; the limit is {limit}")


def _check_sum(left: Any, right: Any) -> None:
    if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        _check_size(len(left) + len(right))


def _check_product(left: Any, right: Any) -> None:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple) and isinstance(other, int):
            _check_size(len(one) * max(other, 0))
    if isinstance(left, int) and isinstance(right, int):
        _check_size(left.bit_length() + right.bit_length(), MAX_BITS)


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_size(left.bit_length() * abs(right), MAX_BITS)


def _check_modulo(left: Any, *_: Any, **__: Any) -> None:
    if isinstance(left, str) and re.search(r"%[^%a-zA-Z]*(\d{6}|\*)", left):
        raise SecurityError("a width of more than five digits, or one that is an argument, is not allowed here")


def _check_format(text: str, *_: Any, **__: Any) -> None:
    if re.search(r"\{[^{}]*:[^{}]*(\d{6}|\{)", text):
        raise SecurityError("a width of more than five digits, or one that is an argument, is not allowed here")


def _check_width(text: Any, width: Any = 0, *_: Any, **__: Any) -> None:
    """Padding, or indentation of each line."""
    if isinstance(width, int):
        _check_size(width * (1 + str(text).count("\n")) + len(str(text)))


def _check_tabs(text: str, tabsize: Any = 8, *_: Any, **__: Any) -> None:
    if isinstance(tabsize, int):
        _check_size(len(text) + text.count("\t") * max(tabsize, 0))


def _check_replace(text: Any, old: Any = "", new: Any = "", *_: Any, **__: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        _check_size(len(str(text)) + str(text).count(old) * len(new))


def _check_join(separator: Any, items: Any = (), *_: Any, **__: Any) -> None:
    if isinstance(items, Sized):
        _check_size(len(str(separator)) * len(items))


def _check_joined(items: Any, separator: Any = "", *_: Any, **__: Any) -> None:
    _check_join(separator, items)


def _checked(function: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    """The filter, after a look at its arguments; some filters get a context as their first one."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
        check(*args[first:], **kwargs)
        return bounded(function(*args, **kwargs))

    return run


_OPERATORS = {"+": _check_sum, "*": _check_product, "**": _check_power, "%": _check_modulo}
_METHODS: dict[str, Callable[..., None]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _check_width),
    "expandtabs": _check_tabs,
    "replace": _check_replace,
    "join": _check_join,
    **dict.fromkeys(("format", "format_map"), _check_format),
}
"""Methods of str that can make much out of little."""
_FILTERS: dict[str, Callable[..., None]] = {
    **dict.fromkeys(("center", "indent"), _check_width),
    "replace": _check_replace,
    "join": _check_joined,
    "format": _check_modulo,
}


# --- what Transformers gives templates


def _raise_exception(message: object) -> None:
    raise TemplateRaised(str(message))


class TemplateRaised(TemplateRuntimeError):
    """The template refused the conversation, in its own words."""


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, without the escapes for HTML that Jinja's own filter makes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
