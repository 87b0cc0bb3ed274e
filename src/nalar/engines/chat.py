"""From messages to the text a model was trained on, through the template in its own file.

A chat is tokenised with control tokens on, because the template writes them.  So user text that *spells* a control token,
``<|im_end|>``, would become one and end the turn.  Here every such spelling is replaced by a secret mark before rendering
and put back, after the rendered text is split at the marks, as a segment to be tokenised as plain text.  Chats without such
text, nearly all, are one segment and give exactly llama.cpp's tokens.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nalar.engines.base import Message
from nalar.engines.messages import ROLES, check_messages
from nalar.errors import EngineError, InvalidValue, MissingPackage

try:
    from jinja2 import Template
    from jinja2.exceptions import TemplateError

    from nalar.engines.template_sandbox import Sandbox
except ImportError:
    raise MissingPackage("chat templates need jinja2, which is not installed: pip install 'nalar[llama]'") from None

__all__ = ["Chat", "Segment"]

TEMPLATE_ROLES = (*ROLES, "tool")
LONGEST_TEMPLATE = 1 << 18  # characters; the longest published ones are about a tenth of it


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a rendered chat; ``plain`` text must not become control tokens."""

    text: str
    plain: bool


class Refused(TemplateError):
    """The template called ``raise_exception``: these messages are not what it wants."""


class Chat:
    """A chat template and the spellings that user text must not turn into control tokens."""

    def __init__(self, source: str, controls: Iterable[str], bos: str = "", eos: str = "") -> None:
        self._source, self._values = source, {"bos_token": bos, "eos_token": eos}
        self._guard = _Guard(frozenset(controls) - {""})
        self._lock, self._sandbox = threading.Lock(), Sandbox()
        self._template: Template | None = None

    def segments(self, messages: list[Message]) -> list[Segment]:
        """The rendered chat, ending where the assistant's reply begins.

        Raises ``InvalidType`` or ``InvalidValue`` for messages that are not ones or that the template refuses, and
        ``EngineError`` when the template itself is broken or passes a bound.
        """
        checked = check_messages(messages, TEMPLATE_ROLES)
        hidden = _Hidden()
        guarded = [{**message, "content": self._guard.hide(message["content"], hidden)} for message in checked]
        return hidden.split(self._render(guarded))

    def _render(self, messages: list[dict[str, str]]) -> str:
        values = {**self._values, "messages": messages, "add_generation_prompt": True, "tools": None, "documents": None,
                  "raise_exception": _raise_exception, "strftime_now": _strftime_now}
        with self._lock:
            try:
                self._template = self._template or self._compile()
                return self._sandbox.run(self._template, values)
            except Refused as problem:
                raise InvalidValue(f"messages are refused by the model's chat template: {_one_line(problem)}") from None
            except (EngineError, KeyboardInterrupt):
                raise
            except Exception as problem:  # a stranger's template may raise anything, from a typing error to MemoryError
                raise EngineError(f"the model's chat template failed: {_one_line(problem)}") from None

    def _compile(self) -> Template:
        if len(self._source) > LONGEST_TEMPLATE:
            raise EngineError(f"the model's chat template must have at most {LONGEST_TEMPLATE} characters, got {len(self._source)}")
        return self._sandbox.from_string(self._source)


class _Hidden:
    """The pieces of user text taken out of one chat, and the marks that stand for them."""

    def __init__(self) -> None:
        # 128 random bits that no message can contain; digits and private-use characters survive any change of case.
        self._secret = str(secrets.randbits(128))
        self._texts: list[str] = []

    def mark(self, text: str) -> str:
        self._texts.append(text)
        return f"\ue000{self._secret}:{len(self._texts) - 1}\ue001"

    def split(self, rendered: str) -> list[Segment]:
        # re.split with one group: template text at the even places, the numbers of the marks at the odd ones.
        parts = re.split(f"\ue000{self._secret}:([0-9]+)\ue001", rendered)
        segments = [Segment(self._texts[int(part)], True) if place % 2 else Segment(part, False) for place, part in enumerate(parts)]
        return [segment for segment in segments if segment.text]


class _Guard:
    """Finds what in a message could become part of a control token once the template's text stands around it."""

    def __init__(self, controls: frozenset[str]) -> None:
        longest_first = sorted(controls, key=len, reverse=True)
        self._whole = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        # A message may also end in "<|im_" or begin with "|>", hoping that the template supplies the rest.
        self._beginnings = {text[:size] for text in controls for size in range(1, len(text))}
        self._endings = {text[size:] for text in controls for size in range(1, len(text))}
        self._longest = max(map(len, controls), default=0)

    def hide(self, text: str, hidden: _Hidden) -> str:
        """``text`` with marks for its dangerous parts; the same string when there are none."""
        start, end = self._edges(text)
        spans = [match.span() for match in self._whole.finditer(text, start, end)]
        spans = [(0, start), *spans, (end, len(text))]
        pieces, done = [], 0
        for low, high in spans:
            pieces += [text[done:low], hidden.mark(text[low:high]) if low < high else ""]
            done = high
        return "".join([*pieces, text[done:]])

    def _edges(self, text: str) -> tuple[int, int]:
        """Where the part of ``text`` begins and ends that its neighbours cannot complete.  Templates often strip, so this does."""
        left, right = len(text) - len(text.lstrip()), len(text.rstrip())
        sizes = range(min(self._longest, max(right - left, 0)), 0, -1)
        head = next((left + size for size in sizes if text[left:left + size] in self._endings), 0)
        tail = next((right - size for size in sizes if text[right - size:right] in self._beginnings), len(text))
        return (head, tail) if head <= tail else (len(text), len(text))


def _raise_exception(message: Any = "") -> None:
    raise Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(str(form)[:256])


def _one_line(problem: BaseException) -> str:
    text = " ".join(str(problem).split())
    return (text or type(problem).__name__)[:300]
