"""Model engines by name: one dict of lazy paths, and entry points of the group ``nalar.engines`` for strangers."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol, cast

from nalar.engines.base import Loaded, LoadOptions
from nalar.errors import ModelNotFound

__all__ = ["FAMILIES", "known_names", "load_engine"]

FAMILIES = {
    "toy": "nalar.engines.toy:load",
    "smollm2": "nalar.engines.llama_cpp:load",
    "gguf": "nalar.engines.llama_cpp:load",  # any path that ends in .gguf
}


class Loader(Protocol):
    def __call__(self, name: str, options: LoadOptions) -> Loaded: ...


def load_engine(name: str, options: LoadOptions) -> Loaded:
    """The engine that serves the model ``name``; its family is imported only now."""
    return _loader(name)(name, options)


def known_names() -> list[str]:
    """The names that ``load`` knows, built in and installed."""
    return sorted({*FAMILIES, *(entry.name for entry in entry_points(group="nalar.engines"))} - {"gguf"})


def _loader(name: str) -> Loader:
    family = "gguf" if name.lower().endswith(".gguf") else name
    path = FAMILIES.get(family)
    if path is not None:
        module, attribute = path.split(":")
        return cast(Loader, getattr(import_module(module), attribute))
    for entry in entry_points(group="nalar.engines"):
        if entry.name == name.partition(":")[0]:
            return cast(Loader, entry.load())
    raise ModelNotFound(f"model must be one of {', '.join(known_names())} or a path to a .gguf file, got {name!r}")
