"""Jinja for templates out of a stranger's model file: no reach beyond the messages, and bounds on time, text and numbers.

Jinja's sandbox keeps a template from Python's internals, but not from ``'x' * 10**12`` or from a billion turns of nested
loops.  Here every loop and macro body begins with a tick that checks the clock, and whatever can make a value grow
(operators, string methods, filters, printing) is measured first.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

__all__ = ["Sandbox"]

LARGEST_VALUE = 1 << 23  # characters or elements of one value, and of the whole output
LARGEST_PRODUCT = 1 << 26  # of the sizes that meet in one replace, join, format …
LARGEST_NUMBER = 4096  # bits
SECONDS = 2.0  # real templates take milliseconds
WIDE = re.compile(r"\d{5,}|%[^a-zA-Z%]*\*")  # a field width that is a weapon, as in '%999999999d'
GROWING_METHODS = {"center", "expandtabs", "format", "format_map", "join", "ljust", "replace", "rjust", "translate", "zfill"}
GROWING_FILTERS = {"batch", "center", "format", "indent", "join", "replace", "slice", "sum", "tojson"}
LEFT_OUT = ("pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")  # slow on hostile text, or not a function


class Generation(Extension):
    """``{% generation %}``: marks a reply's text for training in some published templates; here it prints its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between the tag and ``{% endgeneration %}``."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for one template and one thread at a time; every refusal is a ``SecurityError``."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, seconds: float = SECONDS) -> None:
        # Without `optimized`, constants would be computed while compiling, before any clock runs.
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, cache_size=0, finalize=self.spend,
                         extensions=[LoopControlExtension, Generation])
        self._seconds, self._deadline, self._spent = seconds, float("inf"), 0
        self.globals.pop("lipsum")
        for name in LEFT_OUT:
            del self.filters[name]
        self.filters["tojson"] = _to_json
        self.filters = {name: self._measured(name, function) for name, function in self.filters.items()}

    def run(self, template: Template, values: Mapping[str, Any]) -> str:
        """The rendered text.  Raises ``SecurityError`` past a bound, and whatever the template itself raises."""
        self._deadline, self._spent = time.monotonic() + self._seconds, 0
        return "".join(template.generate(values))

    def tick(self, characters: int = 0) -> None:
        """Check the clock; ``characters`` of constant text are about to be printed."""
        if time.monotonic() > self._deadline:
            raise SecurityError(f"it ran for more than {self._seconds:g} s")
        self._spent += characters
        _bound(self._spent, LARGEST_VALUE, "it prints")

    def spend(self, value: Any) -> Any:
        """Called with every value that is printed; gives it back."""
        self.tick(self.weigh(value))
        return value

    def join_texts(self, *values: Any) -> str:
        """The operator ``~``."""
        _bound(sum(map(self.weigh, values)), LARGEST_VALUE, "a text of")
        return "".join(map(str, values))

    def weigh(self, value: Any) -> int:
        """Characters and elements in ``value``, containers counted in depth; stops with an error at the bound."""
        total, waiting = 0, [value]
        while waiting:
            one = waiting.pop()
            if isinstance(one, Mapping):
                waiting += [*one.keys(), *one.values()]
            elif isinstance(one, list | tuple | set):
                waiting += one
            total += len(one) if isinstance(one, str | bytes) else 1
            if not isinstance(one, str):
                self.tick()
            _bound(total + len(waiting), LARGEST_VALUE, "a value of")
        return total

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Every call in a template: string methods that grow are measured, ticks and ``~`` go straight through."""
        if function in (self.tick, self.join_texts):
            return function(*args)
        self.tick()
        method = getattr(function, "__wrapped__", function)  # jinja2 wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str) and name in GROWING_METHODS:
            self._check_product(name, (owner, *args, *kwargs.values()))
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """The operators that make a value grow."""
        if operator in ("*", "**"):
            _check_product_of(operator, left, right)
        elif operator == "%" and isinstance(left, str):
            self._check_product("format", (left, right))
        elif operator == "+" and hasattr(left, "__len__"):
            _bound(len(left) + len(right), LARGEST_VALUE, "a value of")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        bodies = [tree.body, *(node.body for node in tree.find_all(nodes.For)), *(node.body for node in tree.find_all(nodes.Macro)),
                  *(node.body for node in tree.find_all(nodes.CallBlock))]
        for body in bodies:
            characters = sum(len(text.data) for part in body for text in _constant_texts(part))
            body.insert(0, nodes.ExprStmt(_own_call("tick", [nodes.Const(characters)])).set_lineno(1))
        _Concatenations().visit(tree)
        return tree

    def _measured(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same filter, its arguments weighed first; ``wraps`` keeps the marks by which jinja2 passes it a context."""
        skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            given = (*args[skipped:], *kwargs.values())
            if name in GROWING_FILTERS:
                self._check_product(name, given)
            else:
                self.weigh(given)
            return function(*args, **kwargs)

        return measured

    def _check_product(self, name: str, values: tuple[Any, ...]) -> None:
        if name.startswith("format") and WIDE.search(str(values[0])):
            raise SecurityError("it formats to an enormous width")
        product = 1
        for value in values:
            product *= 1 + (abs(value) if isinstance(value, int) else self.weigh(value))
        _bound(product, LARGEST_PRODUCT, f"{name} makes")


class _Concatenations(NodeTransformer):
    """Turns ``a ~ b``, which jinja2 compiles to a plain join, into a call of ``Sandbox.join_texts``."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - jinja2 finds it by this name
        """One ``~`` expression, and those inside it."""
        self.generic_visit(node)
        return _own_call("join_texts", node.nodes).set_lineno(node.lineno)


def _own_call(name: str, arguments: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)


def _constant_texts(node: nodes.Node) -> list[nodes.TemplateData]:
    return [node] if isinstance(node, nodes.TemplateData) else [*node.find_all(nodes.TemplateData)]


def _check_product_of(operator: str, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
        _bound(bits, LARGEST_NUMBER, "a number of", "bits")
    elif operator == "*":
        number, other = (left, right) if isinstance(left, int) else (right, left)
        if isinstance(number, int) and hasattr(other, "__len__"):
            _bound(number * len(other), LARGEST_VALUE, "a value of")


def _bound(size: int, limit: int, what: str, unit: str = "characters") -> None:
    if size > limit:
        raise SecurityError(f"{what} more than {limit} {unit}")


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, sort_keys: bool = False,
             separators: tuple[str, str] | None = None) -> str:
    """JSON as chat templates expect it: jinja2's own escapes for HTML."""
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, sort_keys=sort_keys, separators=separators)
