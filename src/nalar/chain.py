"""A chain: stages in order.  Its meaning is a distribution; its order is data, and ``str(chain)`` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from nalar.candidates import Candidates
from nalar.checks import check_ids, check_number
from nalar.distribution import Distribution
from nalar.errors import BrokenRow, InvalidType, InvalidValue
from nalar.history import History, States, check_history
from nalar.keys import Key, check_key
from nalar.params import SamplingParams
from nalar.rows import FloatRow, as_row
from nalar.stages import Allow, Ban, Bias, Frequency, MinP, MinTokens, Presence, Repetition, Stage, Temperature, TopK, TopP
from nalar.stages.base import Context, Memory
from nalar.text_form import parse_stages, print_stages

__all__ = ["Chain", "Evaluation", "Step", "resolve_key"]


class Step(NamedTuple):
    """One stage at work: what it was given and what it left."""

    stage: Stage
    before: Candidates
    after: Candidates


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The law of one draw, with what the stages with memory need to observe its outcome."""

    chain: Chain
    law: Distribution
    states: States
    inputs: tuple[Candidates | None, ...]  # per stage; only for stages with memory

    def after(self, token: int) -> States:
        """The states once ``token`` was emitted."""
        return self.chain.observe(self.states, token, self.inputs)


@dataclass(frozen=True, init=False)
class Chain:
    """``Chain([stage, …])``: an ordered, immutable tuple of stages.  ``Chain([])`` is the identity: the softmax of the logits.

    >>> chain = Chain.parse("top_k(40) | temperature(0.8) | top_p(0.95)")
    >>> str(chain)
    'top_k(40) | temperature(0.8) | top_p(0.95)'
    >>> chain == Chain([TopK(40), Temperature(0.8), TopP(0.95)])
    True
    """

    stages: tuple[Stage, ...]

    ORDER: ClassVar[tuple[str, ...]] = (
        "allow", "ban", "min_tokens", "bias", "repetition", "frequency", "presence", "temperature", "top_k", "top_p", "min_p",
    )

    def __init__(self, stages: Iterable[Stage] = ()) -> None:
        object.__setattr__(self, "stages", _check_stages(stages))

    @classmethod
    def from_params(cls, params: SamplingParams, ends: Iterable[int] = ()) -> Chain:
        """The chain of ``params`` in ``Chain.ORDER``, without the neutral ones.

        ``ends`` are the model's end ids; ``min_tokens`` needs them (or stop ids), since it masks whatever could end the reply.

        >>> str(Chain.from_params(SamplingParams(top_k=40, temperature=0.8)))
        'temperature(0.8) | top_k(40)'
        """
        if not isinstance(params, SamplingParams):
            raise InvalidType(f"params must be a nalar.SamplingParams, got {params!r}")
        asked = _asked(params, check_ids("ends", ends))
        return cls([asked[name] for name in cls.ORDER if name in asked])

    @classmethod
    def parse(cls, text: str, stages: Mapping[str, type[Stage]] | None = None) -> Chain:
        """The chain that ``text`` writes down; ``stages`` adds your own by name.  ``str`` gives the text back."""
        return cls(parse_stages(text, stages))

    def distribution(
        self, logits: Any, history: History | None = None, key: Key | None = None, vocabulary: int | None = None
    ) -> Distribution:
        """The law of the next token: ``logits`` [vocabulary] of any float type, read and never written.

        ``key`` is needed only where a stage flips a coin; ``vocabulary`` marks trailing padding ids, which are never drawn.

        >>> Chain.parse("temperature(0.5)").distribution([0.0, 0.0]).probs.tolist()
        [0.5, 0.5]
        """
        return self.evaluate(as_row(logits, vocabulary), check_history(history), key).law

    def candidates(self, logits: Any, history: History | None = None, key: Key | None = None, vocabulary: int | None = None) -> Candidates:
        """What is left after the last stage, as logits: not normalised, masked tokens still there.

        >>> Chain.parse("ban([0]) | top_k(2)").candidates([2.0, 1.0, 0.0])
        Candidates(ids=[1, 2], logits=[1.0, 0.0], log_total=1.31326)
        """
        last = Candidates.from_row(as_row(logits, vocabulary))
        for step in self.steps(last, check_history(history), key):
            last = step.after
        return last

    def evaluate(self, row: FloatRow, history: History, key: Key | None = None) -> Evaluation:
        """The law, and what the stages with memory will observe."""
        states = self.states(history, row.size)
        last = Candidates.from_row(row)
        inputs: list[Candidates | None] = []
        for step in self.steps(last, history, key, states):
            inputs.append(step.before if isinstance(step.stage, Memory) else None)
            last = step.after
        return Evaluation(self, Distribution.from_candidates(last), states, tuple(inputs))

    def steps(self, whole: Candidates, history: History, key: Key | None = None, states: States | None = None) -> Iterator[Step]:
        """Each stage's ``apply`` in turn, from a ``whole`` row's candidates on: what it was given and what it left."""
        before, vocabulary = whole, whole.ids.size
        states = self.states(history, vocabulary) if states is None else states
        key = None if key is None else resolve_key(key, history)
        for index, stage in enumerate(self.stages):
            context = Context(history, vocabulary, key, index, states.values[index] if states.values else None)
            after = _checked(stage, stage.apply(before, context), vocabulary)
            yield Step(stage, before, after)
            before = after

    def states(self, history: History, vocabulary: int) -> States:
        """What each stage knows before the next draw, one value a stage; none at all when no stage has a memory.

        They come from the history's log; tokens that were given as ids alone are observed without candidates.
        """
        if not any(isinstance(stage, Memory) for stage in self.stages):
            return States()
        states, unseen = history.latest_states()
        if states is None or states.stages != self.stages:  # ids alone, or the log of another chain
            start, unseen = History(history.prompt), history.output.tolist()
            values = (
                stage.initial(Context(start, vocabulary, index=index)) if isinstance(stage, Memory) else None
                for index, stage in enumerate(self.stages)
            )
            states = States(self.stages, tuple(values))
        for token in unseen:
            states = self.observe(states, token, (None,) * len(self.stages))
        return states

    def observe(self, states: States, token: int, inputs: tuple[Candidates | None, ...]) -> States:
        """The states after ``token``, whose draw gave the stages ``inputs``."""
        if not states.values:
            return states
        seen = zip(self.stages, states.values, inputs, strict=True)
        values = (stage.observe(state, token, given) if isinstance(stage, Memory) else None for stage, state, given in seen)
        return States(self.stages, tuple(values))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.stages,)  # what is cached on a chain stays behind

    def __len__(self) -> int:
        return len(self.stages)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages)

    def __str__(self) -> str:
        return print_stages(self.stages)

    def __repr__(self) -> str:
        return f"Chain.parse({str(self)!r})"


def resolve_key(key: Any, history: History) -> Key:
    """A key at the history's position where it names none itself."""
    checked = check_key(key)
    return checked if checked.position is not None else checked.at(history.position)


def _check_stages(stages: Any) -> tuple[Stage, ...]:
    listed = tuple(stages) if isinstance(stages, Iterable) else (stages,)
    for stage in listed:
        if not isinstance(stage, Stage):
            raise InvalidType(f"stages must be a list of Stage objects, got {stage!r}")
    return listed


def _asked(params: SamplingParams, ends: tuple[int, ...]) -> dict[str, Stage]:
    """The stages that ``params`` ask for, by name; whatever is neutral is not among them."""
    asked: dict[str, Stage | bool] = {
        "allow": params.allowed_tokens is not None and Allow(params.allowed_tokens),
        "ban": bool(params.banned_tokens) and Ban(params.banned_tokens),
        "min_tokens": params.min_tokens > 0 and _min_tokens(params, ends),
        "bias": bool(params.logit_bias) and Bias(params.logit_bias),
        "repetition": params.repetition_penalty != 1 and Repetition(params.repetition_penalty),
        "frequency": params.frequency_penalty != 0 and Frequency(params.frequency_penalty),
        "presence": params.presence_penalty != 0 and Presence(params.presence_penalty),
        "temperature": params.temperature != 1 and Temperature(params.temperature),
        "top_k": params.top_k != 0 and TopK(params.top_k),
        "top_p": params.top_p != 1 and TopP(params.top_p),
        "min_p": params.min_p != 0 and MinP(params.min_p),
    }
    return {name: stage for name, stage in asked.items() if isinstance(stage, Stage)}


def _min_tokens(params: SamplingParams, ends: tuple[int, ...]) -> Stage | bool:
    """Masks what would end the reply: stop ids, and end ids unless they are ignored."""
    last = {*params.stop_tokens, *(() if params.ignore_eos else ends)}
    if not last and not params.ignore_eos:
        raise InvalidValue(f"min_tokens needs ends, the model's end ids, to mask them: pass ends=…, got min_tokens={params.min_tokens}")
    return bool(last) and MinTokens(params.min_tokens, last)


def _checked(stage: Stage, after: Candidates, vocabulary: int) -> Candidates:
    """What a stage left, if it defines a distribution: a stage's mistake is named, never sampled from."""
    if not isinstance(after, Candidates):
        raise InvalidType(f"{stage.name}: apply must return Candidates, got {type(after).__name__}")
    ids: Any = after.ids
    logits: Any = after.logits
    if not isinstance(ids, np.ndarray) or not isinstance(logits, np.ndarray):
        got = f"{type(ids).__name__} and {type(logits).__name__}"
        raise InvalidType(f"{stage.name}: candidates must be int32 [n] and float64 [n], got {got}")
    if ids.dtype != np.int32 or logits.dtype != np.float64 or ids.ndim != 1 or ids.shape != logits.shape:
        got = f"{ids.dtype} {list(ids.shape)} and {logits.dtype} {list(logits.shape)}"
        raise InvalidType(f"{stage.name}: candidates must be int32 [n] and float64 [n], got {got}")
    if after.log_total is not None:
        check_number(f"{stage.name}: log_total (or None)", after.log_total)
    greatest = logits.max(initial=-np.inf)
    if greatest == -np.inf:
        raise BrokenRow(f"{stage.name} left no token to draw", stage=stage.name)
    if not greatest < np.inf:
        raise BrokenRow(f"{stage.name} left a logit of {greatest}", stage=stage.name)
    if ids[0] < 0 or ids[-1] >= vocabulary or (ids.size > 1 and not (ids[1:] > ids[:-1]).all()):
        raise InvalidValue(f"{stage.name}: ids must ascend within [0, {vocabulary - 1}], got {ids[:8].tolist()}…")
    return after
