"""The command: what is printed where, how it ends, and that a mistake is one line and status 2."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import nalar
from nalar.engines.describe import Description

NALAR = [sys.executable, "-c", "from nalar.cli import main; main()"]


def run(*arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*NALAR, *arguments], input=stdin, capture_output=True, timeout=60, env={**os.environ, **(env or {})})


def test_text_goes_to_stdout_and_seed_and_speed_to_stderr() -> None:
    done = run("generate", "--model", "toy", "The ", "--seed", "7", "--max-tokens", "30")
    with nalar.load("toy") as model:
        assert done.stdout.decode() == model.generate("The ", seed=7, max_tokens=30).text + "\n"
    assert done.returncode == 0
    assert done.stderr.decode().startswith("30 tokens, ")
    assert done.stderr.decode().endswith(" tokens/s, seed 7\n")


def test_the_seed_it_chose_gives_the_same_text_again() -> None:
    first = run("generate", "--model", "toy", "The ", "--max-tokens", "60")
    seed = first.stderr.decode().split("seed ")[1].strip()
    assert run("generate", "--model", "toy", "The ", "--max-tokens", "60", "--seed", seed).stdout == first.stdout


@pytest.mark.parametrize("how", ["stdin", "dash", "file", "file dash"])
def test_the_prompt_may_come_from_stdin_or_a_file(how: str, tmp_path: Path) -> None:
    text = "Über den Fluß "
    (tmp_path / "prompt").write_text(text)
    arguments = {"stdin": [], "dash": ["-"], "file": ["--file", str(tmp_path / "prompt")], "file dash": ["--file", "-"]}[how]
    done = run("generate", "--model", "toy", "--seed", "1", "--max-tokens", "9", *arguments, stdin=text.encode())
    with nalar.load("toy") as model:
        assert done.stdout.decode() == model.generate(text, seed=1, max_tokens=9).text + "\n"


def test_json_is_one_strict_object_with_null_for_minus_infinity() -> None:
    asked = ["--seed", "7", "--max-tokens", "4", "--json", "--logprobs", "2", "--echo", "--top-k", "3"]
    done = run("generate", "--model", "toy", "The ", *asked)
    out = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert out.keys() >= {"text", "tokens", "logprobs", "finish_reason", "seed", "stats", "chain"}
    assert (out["seed"], out["chain"], out["finish_reason"], len(out["tokens"])) == (7, "top_k(3)", "length", 4)
    assert out["prompt_logprobs"][0]["raw_logprob"] is None
    assert len(out["raw_top"][0]) == 2
    assert done.stdout.count(b"\n") == 1


def test_any_chain_can_be_set() -> None:
    out = json.loads(run("generate", "--model", "toy", "The ", "--chain", "top_k(2) | temperature(0.5)", "--json", "--seed", "1").stdout)
    assert out["chain"] == "top_k(2) | temperature(0.5)"


def test_several_replies_are_told_apart() -> None:
    with nalar.load("toy") as model:
        texts = [out.text for out in model.generate_n("The ", n=3, seed=7, max_tokens=5)]
    done = run("generate", "--model", "toy", "The ", "--seed", "7", "--max-tokens", "5", "--n", "3")
    assert done.stdout.decode() == "".join(f"--- {place} of 3\n{text}\n" for place, text in enumerate(texts, 1))
    listed = json.loads(run("generate", "--model", "toy", "The ", "--seed", "7", "--max-tokens", "5", "--n", "3", "--json").stdout)
    assert [out["text"] for out in listed] == texts


def test_a_trace_has_a_whole_json_line_for_every_drawn_token(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    done = run("generate", "--model", "toy", "The ", "--seed", "7", "--max-tokens", "12", "--top-p", "0.9", "--trace", str(file))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert b"".join(bytes(line["bytes"]) for line in lines) + b"\n" == done.stdout
    assert [line["index"] for line in lines] == list(range(12))
    for line in lines:
        (stage,) = line["stages"]
        assert stage["stage"] == "top_p(0.9)"
        assert stage["before"] == stage["after"] + stage["cut"] == 261
        assert 0.9 <= stage["mass"] <= 1
        assert line["top"][0]["rank"] == 1


MISTAKES = {
    "unknown option": ["generate", "--modle", "toy"],
    "unknown command": ["genrate"],
    "range": ["generate", "--model", "toy", "x", "--top-p", "1.3"],
    "not a number": ["generate", "--model", "toy", "x", "--top-k", "many"],
    "chain": ["generate", "--model", "toy", "x", "--chain", "top_k(3) | temprature(1)"],
    "chain and field": ["generate", "--model", "toy", "x", "--chain", "top_k(3)", "--top-p", "0.5"],
    "chain and neutral field": ["generate", "--model", "toy", "x", "--chain", "top_k(3)", "--temperature", "1"],
    "chain and neutral field, n": ["generate", "--model", "toy", "x", "--chain", "top_k(3)", "--top-k", "0", "--n", "2"],
    "inspect chain and neutral field": ["inspect", "--model", "toy", "x", "--chain", "top_k(3)", "--top-p", "1"],
    "model": ["generate", "--model", "nope", "x"],
    "not a model": ["generate", "--model", __file__, "x"],
    "no such model file": ["generate", "--model", "/nonexistent/model.gguf", "x"],
    "name too long": ["generate", "--model", "x" * 5000 + ".gguf", "x"],
    "nobody's home": ["generate", "--model", "~nobody-of-that-name/model.gguf", "x"],
    "no such file": ["generate", "--model", "toy", "--file", "/nonexistent"],
    "both prompts": ["generate", "--model", "toy", "x", "--file", __file__],
    "empty prompt": ["generate", "--model", "toy", ""],
    "system alone": ["generate", "--model", "toy", "x", "--system", "y"],
    "echo alone": ["generate", "--model", "toy", "x", "--echo"],
    "trace nowhere": ["generate", "--model", "toy", "x", "--trace", "/nonexistent/steps.jsonl"],
    "logprobs": ["generate", "--model", "toy", "x", "--logprobs", "999"],
    "context": ["generate", "--model", "toy", "x" * 50, "--context", "20"],
    "bias": ["generate", "--model", "toy", "x", "--logit-bias", "a:b"],
    "banned everything": ["generate", "--model", "toy", "x", "--chain", "allow([5]) | ban([5])"],
    "inspect": ["inspect", "--model", "toy", "x", "--min-p", "2"],
    "models": ["models", "nope"],
}


@pytest.mark.parametrize("arguments", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_prints_one_line_and_exits_2(arguments: list[str]) -> None:
    done = run(*arguments)
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, len(lines)) == (2, 1), done.stderr.decode()
    assert lines[0].startswith("nalar: ")
    assert done.stdout in (b"", b"\n")


def test_bytes_that_are_not_text_are_refused() -> None:
    done = run("generate", "--model", "toy", "-", stdin=b"abc\xff")
    assert (done.returncode, done.stderr.decode()) == (2, "nalar: the prompt must be UTF-8 text, got the byte 0xff at offset 3\n")


def test_an_interrupt_ends_cleanly_with_what_was_said() -> None:
    long = ["generate", "--model", "toy", "The ", "--ignore-eos", "--context", "1000000", "--max-tokens", "900000"]
    child = subprocess.Popen([*NALAR, *long], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read(20)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert out.endswith(b"\n")
    assert err.decode().count("\n") == 1
    assert "seed" in err.decode()


def test_a_reader_that_leaves_is_no_traceback() -> None:
    command = f"{sys.executable} -c 'from nalar.cli import main; main()'"
    shell = f"set -o pipefail; {command} generate --model toy 'The ' --ignore-eos --max-tokens 4000 | head -c 10"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, timeout=60)
    assert (done.returncode, len(done.stdout)) == (0, 10)
    assert b"Traceback" not in done.stderr


def test_a_stream_of_another_encoding_shows_question_marks() -> None:
    asked = ["inspect", "--model", "toy", "The ", "--top-k", "3"]
    done = run(*asked, env={"PYTHONIOENCODING": "latin-1"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"261 ? 3" in done.stdout
    assert "261 → 3" in run(*asked).stdout.decode()


@pytest.mark.parametrize(("closed", "status"), [("<&-", 0), (">&-", 0), ("2>&-", 0), ("<&- >&- 2>&-", 0), ("nothing to read <&-", 2)])
def test_a_closed_stream_is_as_good_as_an_empty_one(closed: str, status: int) -> None:
    command, prompt = f"{sys.executable} -c 'from nalar.cli import main; main()'", "'The '" if status == 0 else "-"
    shell = f"{command} generate --model toy {prompt} --seed 7 --max-tokens 9 {closed.removeprefix('nothing to read')}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, timeout=60)
    assert done.returncode == status
    assert done.stderr.count(b"\n") == ("2>&-" not in closed)
    with nalar.load("toy") as model:
        text = model.generate("The ", seed=7, max_tokens=9).text + "\n"
    assert done.stdout.decode() == ("" if status or (" " + closed).count(" >&-") else text)


def test_an_interrupt_before_the_command_is_loaded_ends_cleanly() -> None:
    code = """
import sys

class Interrupt:
    def find_spec(self, name, *rest):
        if name == "nalar.cli.commands":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from nalar.cli import main
main(["models"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def on_a_terminal(*arguments: str) -> str:
    """What a person sees, escapes included."""
    main, side = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    child = subprocess.Popen([*NALAR, *arguments], stdout=side, stderr=side, stdin=side, env=env)
    os.close(side)
    seen = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            part = os.read(main, 4096)
        except OSError:
            break
        if not part:
            break
        seen += part
    child.wait(timeout=10)
    os.close(main)
    return seen.decode()


def test_colour_only_on_a_terminal() -> None:
    inspect = ["inspect", "--model", "toy", "The ", "--top-k", "3"]
    assert "\x1b[" in on_a_terminal(*inspect)
    assert b"\x1b" not in run(*inspect).stdout
    assert "\x1b[" in on_a_terminal("generate", "--model", "toy", "The ", "--max-tokens", "3")


def test_a_long_prompt_shows_its_progress_on_a_terminal_only() -> None:
    long = ["generate", "--model", "toy", "The cat sat. " * 200, "--max-tokens", "2", "--seed", "1"]
    assert "tokens" in on_a_terminal(*long)
    assert run(*long).stderr.decode().count("\n") == 1


def test_inspect_shows_every_stage_and_who_is_cut_by_which() -> None:
    asked = ["inspect", "--model", "toy", "The cat ", "--chain", "ban([115]) | temperature(0.7) | top_k(3)"]
    done = run(*asked, "--top", "5")
    shown = done.stdout.decode()
    stages = shown.split("\n\n")[1]
    assert "261 → 260" in stages
    assert "260 → 3" in stages
    record = json.loads(run(*asked, "--json").stdout)
    assert [stage["stage"] for stage in record["stages"]] == ["ban([115])", "temperature(0.7)", "top_k(3)"]
    assert {one["text"]: one["cut_by"] for one in record["candidates"]}["s"] == "ban([115])"
    with nalar.load("toy") as model:
        law = nalar.Chain.parse("ban([115]) | temperature(0.7) | top_k(3)").distribution(model.logits("The cat "))
    for one in record["candidates"]:
        assert one["stages"][-1] == pytest.approx(law.prob(one["token"]), abs=1e-12)


def test_models_lists_what_is_installed() -> None:
    shown = run("models").stdout.decode()
    assert "toy" in shown
    assert "smollm2" in shown
    listed = json.loads(run("models", "toy", "--json").stdout)
    assert (listed[0]["vocabulary"], listed[0]["defaults"]) == (261, {})


def test_a_models_name_is_no_markup(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The name of an installed engine, or of a file, is anyone's."""
    name = "[bold]a[/nothing]\x1b[31m"
    told = Description(name, f"/{name}.gguf", None, 1, 1, False, {name: name})
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr("nalar.cli.models.describe", lambda asked: told)
    from nalar.cli.commands import run as run_here

    assert run_here(["models", "x"]) == 0
    shown = capsys.readouterr().out
    assert shown.count(r"[bold]a[/nothing]\x1b[31m") == 4
    assert "\x1b" not in shown


def test_a_missing_extra_says_which_install_brings_it() -> None:
    hide = "import sys; sys.modules['click'] = None; from nalar.cli import main; main(['models'])"
    done = subprocess.run([sys.executable, "-c", hide], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr.decode()) == (2, "nalar: the command line needs click: pip install 'nalar[cli]'\n")
