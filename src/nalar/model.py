"""A model one can talk to: an engine, with text on both sides."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from nalar.chain import Chain
from nalar.checks import check_flag, check_integer
from nalar.completion import Completion, Event, Stats, fold
from nalar.echo import PromptToken, prompt_logprobs
from nalar.engines import load_engine
from nalar.engines.base import Engine, LoadOptions, Message, Work
from nalar.errors import InvalidType, InvalidValue
from nalar.feed import Host, Progress, check_prompt, feed_ahead
from nalar.generate import Request, run
from nalar.generate_many import Branch, run_many
from nalar.history import as_ids
from nalar.keys import fresh_seed
from nalar.params import SamplingParams
from nalar.prefixes import Prefixes
from nalar.sampling import check_chain
from nalar.speculative.drafts import DraftSource, check_source
from nalar.speculative.proposal import Proposal
from nalar.speculative.verifier import RuleLike, check_rule
from nalar.stages import MinTokens

__all__ = ["Model", "check_beside", "load"]

Prompt = str | Iterable[int]
DraftLike = str | DraftSource | None

REPLY_FIELDS = ("min_tokens", "max_tokens", "stop", "stop_tokens", "ignore_eos", "seed", "n", "logprobs")
# What a chain decides, so that it cannot be asked for beside one: all the rest, or a new field would be dropped in silence.
LAW_FIELDS = tuple(name for name in SamplingParams.__dataclass_fields__ if name not in REPLY_FIELDS)


def load(
    name: str, *, context: int | None = None, threads: int | None = None, sequences: int = 8, reproducible: bool = False
) -> Model:
    """Load a model by name: "smollm2" (bundled), "toy" (no weights), or a path to a .gguf file.

    ``context``: tokens a sequence can hold, the engine's choice when None.  ``threads``: processor threads, half the cores when None.
    ``sequences``: how many can be open at once.  ``reproducible``: a row of logits does not depend on how many rows are computed at
    once, at some cost in speed.  Use it in a ``with`` block, or call ``close``.

    >>> with load("toy") as model:
    ...     model.generate("The ", max_tokens=3, temperature=0).finish_reason
    'length'
    """
    if not isinstance(name, str):
        raise InvalidType(f"model must be a name or a path, got {name!r}")
    options = LoadOptions(
        context=None if context is None else check_integer("context", context, 1),
        threads=None if threads is None else check_integer("threads", threads, 1),
        sequences=check_integer("sequences", sequences, 1),
        reproducible=check_flag("reproducible", reproducible),
    )
    loaded = load_engine(name, options)
    return Model(loaded.engine, name=loaded.name, release=loaded.release)


class Model:
    """``engine`` with generation on top.  ``release`` is called once, by ``close``."""

    def __init__(self, engine: Engine, *, name: str = "model", release: Callable[[], None] = lambda: None) -> None:
        self.engine = engine
        self.name = name
        self._release = release
        self._host = Host(engine, Prefixes(engine))

    def generate(
        self, prompt: Prompt | None = None, params: SamplingParams | None = None, *, messages: list[Message] | None = None,
        chain: Chain | None = None, draft: DraftLike = None, rule: RuleLike = None, echo: bool = False, progress: Progress | None = None,
        **fields: Any,
    ) -> Completion:
        """One whole reply.

        ``prompt``: text, tokenised without control tokens, or token ids; or ``messages``: a chat, rendered by the model's own
        template.  ``params`` and single ``fields`` of SamplingParams, which override them; or a ``chain`` for the law, beside
        fields for the rest.  ``draft``: "suffix", "ngram", a source from ``nalar.speculative.drafts`` or your own; it changes the speed,
        never the law.  ``rule``: see ``nalar.verify``.  ``echo``: also report the prompt's own log-probabilities.

        >>> with load("toy") as model:
        ...     out = model.generate(messages=[{"role": "user", "content": "Hello"}], seed=7, max_tokens=5)
        >>> len(out.tokens) <= 5, out.seed
        (True, 7)
        """
        request = self.request(prompt, params, messages=messages, chain=chain, draft=draft, rule=rule, progress=progress, **fields)
        told = self.prompt_logprobs(request) if check_flag("echo", echo) else None
        events, stats = self.events(request)
        return fold(events, seed=request.seed, chain=str(request.chain), stats=stats, prompt_logprobs=told)

    def generate_n(
        self, prompt: Prompt | None = None, params: SamplingParams | None = None, *, messages: list[Message] | None = None,
        chain: Chain | None = None, draft: DraftLike = None, rule: RuleLike = None, echo: bool = False, progress: Progress | None = None,
        **fields: Any,
    ) -> list[Completion]:
        """``n`` replies to one prompt, which is evaluated once; the first is ``generate``'s.

        They are what n runs with sequence 0 … n − 1 draw, on an engine whose rows do not depend on how many are computed at once
        (``load(…, reproducible=True)``).

        >>> with load("toy") as model:
        ...     [out.text for out in model.generate_n("The ", n=2, seed=7, max_tokens=9)]
        ['se bridg,', 'bird said']
        """
        n = _merge(params, fields).n
        once = fields | {"n": 1}
        request = self.request(prompt, params, messages=messages, chain=chain, draft=draft, rule=rule, progress=progress, **once)
        told = self.prompt_logprobs(request) if check_flag("echo", echo) else None
        branches = self.branches(request, n)
        return [
            fold(branch.events, seed=request.seed, chain=str(request.chain), stats=branch.stats, prompt_logprobs=told)
            for branch in branches
        ]

    def stream(
        self, prompt: Prompt | None = None, params: SamplingParams | None = None, *, messages: list[Message] | None = None,
        chain: Chain | None = None, draft: DraftLike = None, rule: RuleLike = None, progress: Progress | None = None, **fields: Any,
    ) -> Iterator[str]:
        """The reply piece by piece; joined, the pieces are ``generate``'s text.  Closing the iterator cancels the reply.

        >>> with load("toy") as model:
        ...     "".join(model.stream("The ", seed=7)) == model.generate("The ", seed=7).text
        True
        """
        request = self.request(prompt, params, messages=messages, chain=chain, draft=draft, rule=rule, progress=progress, **fields)
        return _texts(self.events(request)[0])

    def request(
        self, prompt: Prompt | None = None, params: SamplingParams | None = None, *, messages: list[Message] | None = None,
        chain: Chain | None = None, draft: DraftLike = None, rule: RuleLike = None, progress: Progress | None = None, trace: bool = False,
        **fields: Any,
    ) -> Request:
        """What ``generate`` is asked, resolved and checked: prompt ids, chain, seed."""
        asked = _merge(params, fields)
        if asked.n != 1:
            raise InvalidValue(f"n must be 1 here, got {asked.n}: generate_n draws several replies")
        if asked.logprobs is not None:
            check_integer("logprobs", asked.logprobs, 0, self.engine.vocabulary.size)
        self._check_stop_tokens(asked)
        law = Chain.from_params(asked, self.engine.vocabulary.ends) if chain is None else self._beside(check_chain(chain), asked, fields)
        seed = fresh_seed() if asked.seed is None else asked.seed
        if progress is not None and not callable(progress):
            raise InvalidType(f"progress must be a function of two numbers, got {progress!r}")
        ids = self.encode(prompt, messages=messages)
        check_rule(rule, Proposal.point(()))
        source = check_source(draft, self.engine)
        return Request(ids, law, asked, seed, progress=progress, trace=trace, draft=source, rule=rule)

    def prompt_logprobs(self, request: Request) -> tuple[PromptToken, ...]:
        """How likely the model found the request's prompt, token by token."""
        return prompt_logprobs(self._host, request.prompt, request.params.logprobs or 0)

    def branches(self, request: Request, n: int) -> list[Branch]:
        """``n`` replies to one request, with their events and stats."""
        return run_many(self._host, request, check_integer("n", n, 1, 2**32))

    def logits(self, prompt: Prompt | None = None, *, messages: list[Message] | None = None) -> npt.NDArray[np.float32]:
        """The row of logits that follows a prompt, float32 [vocabulary], as a copy of your own.

        >>> with load("toy") as model:
        ...     model.logits("The ").shape
        (261,)
        """
        ids = self.encode(prompt, messages=messages)
        host = self._host
        with host.lock:
            sequence, reused = host.prefixes.acquire(ids)
            with host.keeping(sequence):
                rows = host.step([Work(sequence, feed_ahead(host, sequence, ids[reused:]))])[0]
            return np.array(rows[-1, : self.engine.vocabulary.size], subok=False)

    def events(self, request: Request) -> tuple[Generator[Event], Stats]:
        """The events of one reply, and the stats that fill in as they come."""
        stats = Stats()
        return run(self._host, request, stats), stats

    def close(self) -> None:
        """Free the model.  Calling it again does nothing."""
        release, self._release = self._release, lambda: None
        release()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check_stop_tokens(self, asked: SamplingParams) -> None:
        """Every other list of ids is checked against the row by its stage."""
        size = self.engine.vocabulary.size
        outside = [token for token in asked.stop_tokens if token >= size]
        if outside:
            raise InvalidValue(f"stop_tokens must be token ids in [0, {size - 1}], the model's vocabulary, got {outside[0]}")

    def _beside(self, chain: Chain, asked: SamplingParams, fields: dict[str, Any]) -> Chain:
        """A chain of the caller's own, behind the mask that ``min_tokens`` asks for."""
        neutral = SamplingParams()
        check_beside({name: True for name in LAW_FIELDS if getattr(asked, name) != getattr(neutral, name)} | fields)
        guard = [stage for stage in Chain.from_params(asked, self.engine.vocabulary.ends) if isinstance(stage, MinTokens)]
        return Chain([*guard, *chain])

    def encode(self, prompt: Prompt | None = None, *, messages: list[Message] | None = None) -> tuple[int, ...]:
        """The ids of a prompt or a chat, checked against vocabulary and context."""
        ids = self._ids(prompt, messages)
        check_prompt(self._host, ids)
        return ids

    def _ids(self, prompt: Prompt | None, messages: list[Message] | None) -> tuple[int, ...]:
        if (prompt is None) == (messages is None):
            raise InvalidType("give either prompt or messages, got " + ("neither" if prompt is None else "both"))
        vocabulary = self.engine.vocabulary
        if messages is not None:
            return tuple(vocabulary.encode_chat(messages))
        if isinstance(prompt, str):
            return (*vocabulary.begin, *vocabulary.encode(prompt))
        ids = as_ids("prompt", prompt)  # type: ignore[arg-type]  # not None: checked above
        if ids.size and (ids.min() < 0 or ids.max() >= vocabulary.size):
            raise InvalidValue(f"prompt must hold token ids in [0, {vocabulary.size - 1}], got {int(ids.min())} … {int(ids.max())}")
        return tuple(ids.tolist())


def check_beside(fields: Mapping[str, Any]) -> None:
    """Fields that may stand beside a chain: none that it decides itself, not even with a neutral value."""
    named = [name for name in LAW_FIELDS if name in fields]
    if named:
        raise InvalidValue(f"chain decides {', '.join(named)} itself, got both")


def _merge(params: SamplingParams | None, fields: dict[str, Any]) -> SamplingParams:
    if params is not None and not isinstance(params, SamplingParams):
        raise InvalidType(f"params must be a nalar.SamplingParams, got {params!r}")
    return (params or SamplingParams()).replace(**fields)


def _texts(events: Generator[Event]) -> Iterator[str]:
    """The texts of events; closing it closes the events, which cancels the reply."""
    with closing(events):
        for event in events:
            if event.text:
                yield event.text
