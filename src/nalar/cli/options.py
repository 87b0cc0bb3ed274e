"""Options that several commands share: which model, which prompt, which parameters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from nalar.errors import InvalidValue
from nalar.params import SamplingParams

__all__ = ["ask_of", "asked_fields", "law_options", "model_options", "prompt_options", "read_prompt", "sampling_params"]

Command = TypeVar("Command", bound=Callable[..., Any])


class Bias(click.ParamType[tuple[int, float]]):
    """ID:VALUE, VALUE a number or -inf."""

    name = "ID:VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        token, _, amount = str(value).partition(":")
        try:
            return int(token), float(amount)
        except ValueError:
            self.fail(f"must be a token id, a colon and a number (or -inf), got {value!r}", param, ctx)


def model_options(command: Command) -> Command:
    """Which model, and how it is loaded."""
    return _apply(command, [
        click.option("-m", "--model", default="smollm2", show_default=True, metavar="NAME|PATH", help="smollm2, toy, or a .gguf file."),
        click.option("--context", type=int, metavar="TOKENS", help="Tokens a sequence can hold.  [default: the engine's choice]"),
        click.option("--threads", type=int, metavar="N", help="Processor threads.  [default: half the cores]"),
        click.option("--reproducible", is_flag=True, help="Rows do not depend on how many are computed at once; slower."),
    ])


def prompt_options(command: Command) -> Command:
    """Where the prompt comes from."""
    return _apply(command, [
        click.argument("prompt", required=False),
        click.option("-f", "--file", "file", type=click.File("rb"), help="Read the prompt from a file; - is stdin."),
        click.option("--chat", is_flag=True, help="The prompt is a message; render it with the model's chat template."),
        click.option("--system", metavar="TEXT", help="With --chat: the system message."),
    ])


def law_options(command: Command) -> Command:
    """What the distribution is."""
    return _apply(command, [
        click.option("--chain", "chain", metavar="TEXT", help='Any chain, as "stage(…) | stage(…)"; instead of the options below.'),
        click.option("--temperature", type=float, metavar="T", help="Divides the logits; 0 is greedy.  [default: 1]"),
        click.option("--top-k", type=int, metavar="K", help="Keep the K most likely tokens.  [default: off]"),
        click.option("--top-p", type=float, metavar="P", help="Keep the most likely tokens that reach P together.  [default: off]"),
        click.option("--min-p", type=float, metavar="P", help="Keep tokens P times as likely as the most likely.  [default: off]"),
        click.option("--repetition-penalty", type=float, metavar="X", help="Divide or multiply logits of ids seen.  [default: off]"),
        click.option("--frequency-penalty", type=float, metavar="X", help="Subtract X per occurrence in the output.  [default: off]"),
        click.option("--presence-penalty", type=float, metavar="X", help="Subtract X from ids in the output.  [default: off]"),
        click.option("--logit-bias", type=Bias(), multiple=True, help="Add VALUE to a token's logit; repeatable."),
        click.option("--allow-token", "allowed_tokens", type=int, multiple=True, metavar="ID", help="Only these ids; repeatable."),
        click.option("--ban-token", "banned_tokens", type=int, multiple=True, metavar="ID", help="Never this id; repeatable."),
    ])


def sampling_params(given: dict[str, Any]) -> SamplingParams:
    """The parameters among a command's options; what was not given keeps its default."""
    return SamplingParams(**asked_fields(given))


def asked_fields(given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given: a repeatable one that was not is ()."""
    return {name: value for name, value in given.items() if value is not None and value != ()}


def ask_of(prompt: str | None, file: Any, chat: bool, system: str | None) -> dict[str, Any]:
    """What to ask a model: ``{"prompt": …}``, or ``{"messages": …}`` with --chat."""
    if system is not None and not chat:
        raise InvalidValue("--system needs --chat, got it alone")
    text = read_prompt(prompt, file)
    if not chat:
        return {"prompt": text}
    before = [] if system is None else [{"role": "system", "content": system}]
    return {"messages": [*before, {"role": "user", "content": text}]}


def read_prompt(prompt: str | None, file: Any) -> str:
    """The prompt from the argument, a file or stdin: exactly one of them."""
    if prompt is not None and file is not None:
        raise InvalidValue("give the prompt as an argument or by --file, got both")
    if prompt is not None and prompt != "-":
        return prompt
    source = file if file is not None else sys.stdin.buffer
    if source is sys.stdin.buffer and prompt is None and file is None and sys.stdin.isatty():
        raise InvalidValue("give a prompt: as an argument, by --file, or on stdin")
    return _decode(source.read())


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidValue(f"the prompt must be UTF-8 text, got the byte 0x{data[error.start]:02x} at offset {error.start}") from None


def _apply(command: Command, decorators: list[Callable[[Command], Command]]) -> Command:
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


