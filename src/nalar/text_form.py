"""A chain as text and back: ``stage | stage | …``, or ``identity``.

``stage`` is ``name(argument, …)``; an argument is a literal, by position or ``name=literal``: numbers with ``inf``, quoted strings,
``true``, ``false``, ``none``, lists, ``{id: number}``.  Python's own parser reads it, and only literals are evaluated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from nalar.errors import InvalidType, NalarError, ParseError
from nalar.stages import BUILT_IN, Stage

__all__ = ["parse_stages", "print_stage", "print_stages"]

IDENTITY = "identity"
SHAPE = "a chain must read stage(argument, …) | stage(argument, …)"
NAMES = {"inf": float("inf"), "true": True, "false": False, "none": None}


def print_stages(stages: Iterable[Stage]) -> str:
    """The text of stages in order."""
    return " | ".join(map(print_stage, stages)) or IDENTITY


def print_stage(stage: Stage) -> str:
    """``name(first, other=…)``: the first field by position, the others only where they are not the default.

    A field with ``repr=False`` is a handle, not a parameter (a grammar's tokenizer): the text leaves it out.
    """
    values = [(field, getattr(stage, field.name)) for field in _fields(type(stage)) if field.init and field.repr]
    first = [_print_literal(value) for _, value in values[:1]]
    others = [f"{field.name}={_print_literal(value)}" for field, value in values[1:] if field.default is MISSING or value != field.default]
    return f"{stage.name}({', '.join(first + others)})"


def parse_stages(text: str, extra: Mapping[str, type[Stage]] | None = None) -> list[Stage]:
    """The stages that ``text`` names; ``extra`` adds your own by name.  An error shows the column."""
    if not isinstance(text, str):
        raise InvalidType(f"a chain's text must be a string, got {text!r}")
    if text.strip() == IDENTITY:
        return []
    line = re.sub(r"\s", " ", text)
    return [_build(line, call, extra or {}) for call in _calls(line)]


def _calls(text: str) -> list[ast.expr]:
    """The operands of a | b | c, left to right."""
    offset = len(text) - len(text.lstrip())
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ParseError(SHAPE, text, min(offset + (error.offset or len(text.strip()) + 1), len(text) + 1)) from None
    except (ValueError, RecursionError, MemoryError):
        raise ParseError(SHAPE, text, 1) from None
    if node.end_col_offset != len(text.strip().encode()):  # a comment would swallow the stages behind it
        raise ParseError(SHAPE, text, _column_of(text, node.end_col_offset or 0))
    calls: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        calls.append(node.right)
        node = node.left
    return [node, *reversed(calls)]


def _build(text: str, call: ast.expr, extra: Mapping[str, type[Stage]]) -> Stage:
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ParseError("a stage must be written name(argument, …)", text, _column(text, call))
    kind = _find(text, call.func, extra)
    positional = [_literal(text, argument) for argument in call.args]
    named = {_name(text, keyword): _literal(text, keyword.value) for keyword in call.keywords}
    if len(named) < len(call.keywords):
        raise ParseError(f"{call.func.id} takes each of ({_field_names(kind)}) once", text, _column(text, call))
    try:
        return kind(*positional, **named)
    except NalarError as error:
        raise ParseError(str(error), text, _column(text, call)) from None
    except TypeError:
        raise ParseError(f"{call.func.id} takes ({_field_names(kind)})", text, _column(text, call)) from None


def _find(text: str, name: ast.Name, extra: Mapping[str, type[Stage]]) -> type[Stage]:
    known = BUILT_IN | dict(extra)
    if name.id not in known:
        raise ParseError(f"a stage must be one of {', '.join(known)}, got {name.id!r}", text, _column(text, name))
    return known[name.id]


def _name(text: str, keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise ParseError("an argument must be a literal", text, _column(text, keyword.value))
    return keyword.arg


def _literal(text: str, node: ast.expr) -> Any:
    """The value of a literal; anything that would have to be computed is an error."""
    match node:
        case ast.Constant(value=None | int() | float() | str() as value):
            return value
        case ast.Name(id=name) if name in NAMES:
            return NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand) if _is_number(value := _literal(text, operand)):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(text, item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return [(_literal(text, key), _literal(text, value)) for key, value in zip(_keys(text, node, keys), values, strict=True)]
    literals = "a number, inf, a quoted string, true, false, none, a list or {id: number}"
    raise ParseError(f"an argument must be {literals}", text, _column(text, node))


def _keys(text: str, node: ast.Dict, keys: list[ast.expr | None]) -> list[ast.expr]:
    found = [key for key in keys if key is not None]
    if len(found) != len(keys):  # {**other}
        raise ParseError("an argument must be a literal", text, _column(text, node))
    return found


def _print_literal(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple) and value and all(map(_is_pair, value)):
        return "{" + ", ".join(f"{token}: {_print_literal(amount)}" for token, amount in value) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_print_literal, value)) + "]"
    return repr(value)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], float)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _field_names(kind: Any) -> str:
    return ", ".join(field.name for field in _fields(kind))


def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind) if is_dataclass(kind) else ()


def _column(text: str, node: ast.expr) -> int:
    return _column_of(text, node.col_offset)


def _column_of(text: str, offset: int) -> int:
    """The column in the text as given, from 1; ast counts bytes of the stripped text."""
    lead = len(text) - len(text.lstrip())
    return lead + len(text.strip().encode()[:offset].decode(errors="ignore")) + 1
