"""What a name or a path would load, told without loading it for use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from nalar.engines import load_engine
from nalar.engines.base import LoadOptions

__all__ = ["Description", "describe"]


@dataclass(frozen=True, slots=True)
class Description:
    """A model as its own file describes it.  ``defaults`` are the file's sampling defaults: shown, never applied."""

    name: str
    source: str  # a path, or what there is instead
    size: int | None  # bytes on disk
    vocabulary: int
    context: int  # tokens it was trained for
    chat: bool  # whether it brings a chat template
    defaults: Mapping[str, str]


def describe(name: str) -> Description:
    """The description of ``name``; an error says why it could not be loaded."""
    if name == "toy":
        return _toy()
    if name == "smollm2" or name.lower().endswith(".gguf"):
        return _gguf(name)
    return _loaded(name)


def _toy() -> Description:
    toy = import_module("nalar.engines.toy").Toy()
    return Description("toy", "computed, no file", None, toy.vocabulary.size, toy.limits.context, True, {})


def _gguf(name: str) -> Description:
    find: Callable[[str], Path] = import_module("nalar.engines.weights").find_weights
    path = find(name)
    model = import_module("nalar.engines.llama_model").Model(path)
    try:
        size = import_module("nalar.engines.gguf_vocabulary").GgufVocabulary(model).size
        chat = model.chat_template() is not None
        return Description(name, str(path), path.stat().st_size, size, model.training_context(), chat, model.sampling_defaults())
    finally:
        model.free()


def _loaded(name: str) -> Description:
    """An engine of someone else's: all that is known of it is its contract, so it is loaded."""
    loaded = load_engine(name, LoadOptions())
    try:
        engine = loaded.engine
        chat = engine.vocabulary.chat_template is not None
        return Description(name, f"engine {loaded.name}", None, engine.vocabulary.size, engine.limits.context, chat, {})
    finally:
        loaded.release()
