"""Imports go one way, and the core stands on NumPy alone."""

from __future__ import annotations

import ast
import graphlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in sorted(ROOT.rglob("*.py"))
}

# From the bottom up.  A name stands for the module or for the whole package; `nalar` itself is the front door.
# A module may import its own layer and those before it.  A new module gets its place here first.
LAYERS = [
    {"nalar.errors", "nalar.checks", "nalar.keys"},
    {"nalar.params"},
    {"nalar.kernels"},
    {"nalar.candidates", "nalar.rows", "nalar.history", "nalar.distribution"},
    {"nalar.stages"},
    {"nalar.text_form", "nalar.encoding"},
    {"nalar.fast"},
    {"nalar.chain"},
    {"nalar.fast_batch"},
    {"nalar.profiles"},
    {"nalar.sampling", "nalar.trace"},
    {"nalar.engines"},
    {"nalar.speculative"},
    {"nalar.exact", "nalar.monitor"},
    {"nalar.window"},
    {"nalar.sampler"},
    {"nalar.sampler_batch"},
    {"nalar.text", "nalar.prefixes", "nalar.feed", "nalar.echo", "nalar.completion", "nalar.reply"},
    {"nalar.generate", "nalar.generate_many"},
    {"nalar.model"},
    {"nalar"},
    {"nalar.cli", "nalar.server", "nalar.studio", "nalar.integrations", "nalar.audit"},
]
CORE = {"numpy", "numba", "llvmlite", "msgspec"}  # what `import nalar` may bring in
OPTIONAL = ["click", "rich", "llama_cpp", "jinja2", "torch", "scipy", "ml_dtypes", "numba", "msgspec"]
SLOW = {"asyncio", "concurrent.futures.process", "http.client", "http.server", "multiprocessing.pool", "sqlite3", "unittest.mock"}


def layer(module: str) -> int | None:
    """The layer of ``module``: its own, or that of the package it is in; the front door has no insides."""
    exact = [n for n, names in enumerate(LAYERS) if module in names]
    inside = [n for n, names in enumerate(LAYERS) for name in names - {"nalar"} if module.startswith(name + ".")]
    return next(iter(exact + inside), None)


def imports(source: str) -> Iterator[tuple[int, str]]:
    """Every import of Nalar in ``source``, wherever it stands, as (line, module)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "nalar")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nalar":
            yield from ((node.lineno, _target(str(node.module), alias.name)) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            yield from ((node.lineno, str(name)) for name in names[:1] if str(name).split(".")[0] == "nalar")


def _target(package: str, name: str) -> str:
    """``from nalar import stages`` imports a module, ``from nalar import Key`` the front door."""
    return f"{package}.{name}" if f"{package}.{name}" in MODULES else package


def upward(module: str, source: str) -> list[str]:
    """The imports of ``module`` that go against the direction."""
    here = layer(module)
    assert here is not None, f"{module} has no layer: give it a place in LAYERS, tests/test_layers.py"
    found = [(line, target, layer(target)) for line, target in imports(source)]
    return [f"{module}:{line} imports {target}" for line, target, there in found if there is None or there > here]


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module: str) -> None:
    assert upward(module, MODULES[module].read_text()) == []


def test_no_cycles_inside_a_layer() -> None:
    graph = {
        module: {target for _, target in imports(path.read_text()) if layer(target) == layer(module)} - {module, _package(module)}
        for module, path in MODULES.items()
    }
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the cycle


def _package(module: str) -> str:
    """The package a module is in: its ``__init__`` gathers its modules, which take the contract from ``base``."""
    return module.rpartition(".")[0]


@pytest.mark.parametrize(
    ("module", "source", "bad"),
    [
        ("nalar.keys", "from nalar.chain import Chain", True),
        ("nalar.keys", "def late():\n    import nalar.chain", True),
        ("nalar.keys", "from importlib import import_module\nimport_module('nalar.cli')", True),
        ("nalar.stages.base", "from nalar import Key", True),
        ("nalar.chain", "from nalar import stages, errors", False),
        ("nalar.cli.commands", "import nalar", False),
    ],
)
def test_the_check_itself(module: str, source: str, bad: bool) -> None:
    assert bool(upward(module, source)) is bad


PROBE = """
import importlib.abc, json, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)
blocked = set(json.loads(sys.argv[1]))
sys.meta_path.insert(0, Absent())
import numpy
before = set(sys.modules)
import nalar
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def brought_in(blocked: list[str]) -> set[str]:
    """The modules that ``import nalar`` loads after NumPy is there, in a fresh process where ``blocked`` do not exist."""
    command = [sys.executable, "-W", "error", "-c", PROBE, json.dumps(blocked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_the_core_needs_numpy_alone() -> None:
    brought_in(OPTIONAL)


def test_import_is_light() -> None:
    loaded = brought_in([])
    outside = {name.split(".")[0] for name in loaded} - set(sys.stdlib_module_names) - {"nalar"} - CORE
    assert {name for name in outside if not name.startswith("_")} == set()
    assert loaded & SLOW == set()
