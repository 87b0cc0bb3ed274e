"""The front door: exactly these names, each explained, and code small enough to read."""

from __future__ import annotations

import ast
import inspect
import statistics
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import nalar

FRONT_DOOR = {
    "Chain",
    "Distribution",
    "History",
    "Key",
    "NalarError",
    "Proposal",
    "Sampler",
    "SamplingParams",
    "load",
    "sample",
    "sample_batch",
    "step_batch",
    "verify",
}
SOURCE = Path(nalar.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))


def test_all_is_the_front_door() -> None:
    assert set(nalar.__all__) == FRONT_DOOR
    assert len(nalar.__all__) == len(set(nalar.__all__))


def test_the_namespace_has_nothing_else() -> None:
    own = {name for name, value in vars(nalar).items() if not name.startswith("_") and not _submodule(name, value)}
    assert own == FRONT_DOOR


def _submodule(name: str, value: object) -> bool:
    return isinstance(value, ModuleType) and value.__name__ == f"nalar.{name}"


def test_no_submodule_shares_a_front_door_name() -> None:
    """``import nalar.sample`` would put a module over the function of that name."""
    modules = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert modules & FRONT_DOOR == set()


@pytest.mark.parametrize("name", sorted(FRONT_DOOR))
def test_every_public_name_is_explained(name: str) -> None:
    value = getattr(nalar, name)
    assert _own_docstring(value), f"nalar.{name} has no docstring"
    methods = vars(value) if inspect.isclass(value) else {}
    silent = [method for method, body in methods.items() if _public_method(method, body) and not inspect.getdoc(body)]
    assert silent == [], f"methods of nalar.{name} without a docstring"


def _own_docstring(value: object) -> bool:
    """A dataclass without one gets its signature as docstring, which explains nothing."""
    text = getattr(value, "__doc__", None) or ""
    return bool(text) and not text.startswith(f"{getattr(value, '__name__', '')}(")


def _public_method(name: str, body: object) -> bool:
    return not name.startswith("_") and (inspect.isfunction(body) or isinstance(body, (property, classmethod, staticmethod)))


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(path.relative_to(SOURCE)) for path in FILES if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_files_stay_small() -> None:
    sizes = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in FILES}
    assert {name: size for name, size in sizes.items() if size > 400} == {}
    assert statistics.median(sizes.values()) <= 150


def test_functions_stay_small() -> None:
    """Lines of code without the docstring: about 40 at most, and never more than 50."""
    sizes = dict(_functions())
    assert {name: size for name, size in sizes.items() if size > 50} == {}
    assert len([size for size in sizes.values() if size > 40]) <= len(sizes) // 50
    assert statistics.median(sizes.values()) <= 12


def _functions() -> Iterator[tuple[str, int]]:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}", _length(node)


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    text = node.body[0] if ast.get_docstring(node) else None
    return (node.end_lineno or 0) - node.lineno + 1 - ((text.end_lineno or 0) - text.lineno + 1 if text else 0)
