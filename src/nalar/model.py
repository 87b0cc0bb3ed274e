"""A model one can talk to: an engine, with text on both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

from nalar.chain import Chain
from nalar.checks import check_flag, check_integer
from nalar.completion import Completion, Event, Stats, fold
from nalar.engines import load_engine
from nalar.engines.base import Engine, LoadOptions, Message
from nalar.errors import InvalidType, InvalidValue
from nalar.generate import Host, Progress, Request, check_prompt, run
from nalar.history import as_ids
from nalar.keys import fresh_seed
from nalar.params import SamplingParams
from nalar.prefixes import Prefixes
from nalar.sampling import check_chain
from nalar.stages import MinTokens

__all__ = ["Model", "load"]

LAW_FIELDS = (  # what a chain decides, so that it cannot be asked for beside one
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias",
    "allowed_tokens", "banned_tokens",
)


def load(
    name: str, *, context: int | None = None, threads: int | None = None, sequences: int = 8, reproducible: bool = False
) -> Model:
    """Load a model by name: "smollm2" (bundled), "toy" (no weights), or a path to a .gguf file.

    ``context``: tokens a sequence can hold, the engine's choice when None.  ``threads``: processor threads, all usable when None.
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
        self, prompt: str | Iterable[int] | None = None, params: SamplingParams | None = None, *,
        messages: list[Message] | None = None, chain: Chain | None = None, progress: Progress | None = None, **fields: Any,
    ) -> Completion:
        """One whole reply.

        ``prompt``: text, tokenised without control tokens, or token ids; or ``messages``: a chat, rendered by the model's own
        template.  ``params`` and single ``fields`` of SamplingParams, which override them; or a ``chain`` for the law, beside
        fields for the rest.

        >>> with load("toy") as model:
        ...     out = model.generate(messages=[{"role": "user", "content": "Hello"}], seed=7, max_tokens=5)
        >>> len(out.tokens) <= 5, out.seed
        (True, 7)
        """
        request = self._request(prompt, params, messages, chain, progress, fields)
        stats = Stats()
        return fold(run(self._host, request, stats), seed=request.seed, chain=str(request.chain), stats=stats)

    def stream(
        self, prompt: str | Iterable[int] | None = None, params: SamplingParams | None = None, *,
        messages: list[Message] | None = None, chain: Chain | None = None, progress: Progress | None = None, **fields: Any,
    ) -> Iterator[str]:
        """The reply piece by piece; joined, the pieces are ``generate``'s text.  Closing the iterator cancels the reply.

        >>> with load("toy") as model:
        ...     "".join(model.stream("The ", seed=7)) == model.generate("The ", seed=7).text
        True
        """
        events, _, _ = self.events(prompt, params, messages=messages, chain=chain, progress=progress, **fields)
        return (event.text for event in events if event.text)

    def events(
        self, prompt: str | Iterable[int] | None = None, params: SamplingParams | None = None, *,
        messages: list[Message] | None = None, chain: Chain | None = None, progress: Progress | None = None, **fields: Any,
    ) -> tuple[Iterator[Event], Request, Stats]:
        """The events of a reply, the request they answer, and the stats they fill in."""
        request = self._request(prompt, params, messages, chain, progress, fields)
        stats = Stats()
        return run(self._host, request, stats), request, stats

    def close(self) -> None:
        """Free the model.  Calling it again does nothing."""
        release, self._release = self._release, lambda: None
        release()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _request(
        self, prompt: str | Iterable[int] | None, params: SamplingParams | None, messages: list[Message] | None,
        chain: Chain | None, progress: Progress | None, fields: dict[str, Any],
    ) -> Request:
        asked = _merge(params, fields)
        if asked.n != 1:
            raise InvalidValue(f"n must be 1 here, got {asked.n}: generate_n draws several replies")
        law = Chain.from_params(asked, self.engine.vocabulary.ends) if chain is None else self._beside(chain, params, fields, asked)
        seed = fresh_seed() if asked.seed is None else asked.seed
        request = Request(self._encode(prompt, messages), law, asked, seed, progress=progress)
        check_prompt(self._host, request.prompt)
        return request

    def _beside(self, chain: Chain, params: SamplingParams | None, fields: dict[str, Any], asked: SamplingParams) -> Chain:
        """A chain of the caller's own, behind the mask that ``min_tokens`` asks for."""
        neutral = SamplingParams()
        named = [name for name in LAW_FIELDS if getattr(asked, name) != getattr(neutral, name) or name in fields]
        if named:
            raise InvalidValue(f"chain decides {', '.join(named)} itself, got both")
        guard = Chain.from_params(SamplingParams(
            min_tokens=asked.min_tokens, max_tokens=asked.max_tokens, stop_tokens=asked.stop_tokens, ignore_eos=asked.ignore_eos,
        ), self.engine.vocabulary.ends)
        return Chain([*(stage for stage in guard if isinstance(stage, MinTokens)), *check_chain(chain)])

    def _encode(self, prompt: str | Iterable[int] | None, messages: list[Message] | None) -> tuple[int, ...]:
        if (prompt is None) == (messages is None):
            raise InvalidType("give either prompt or messages, got " + ("neither" if prompt is None else "both"))
        vocabulary = self.engine.vocabulary
        if messages is not None:
            return tuple(vocabulary.encode_chat(messages))
        if isinstance(prompt, str):
            return tuple(vocabulary.encode(prompt))
        ids = as_ids("prompt", prompt or ())
        if ids.size and not (0 <= ids.min() and ids.max() < vocabulary.size):
            raise InvalidValue(f"prompt must hold token ids in [0, {vocabulary.size - 1}], got {int(ids.min())} … {int(ids.max())}")
        return tuple(ids.tolist())


def _merge(params: SamplingParams | None, fields: dict[str, Any]) -> SamplingParams:
    if params is not None and not isinstance(params, SamplingParams):
        raise InvalidType(f"params must be a nalar.SamplingParams, got {params!r}")
    return (params or SamplingParams()).replace(fields)
