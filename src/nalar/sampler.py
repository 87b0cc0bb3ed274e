"""One sequence with memory: what a serving loop embeds.  It holds the keys and the history, and keeps them in step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from nalar.chain import Chain, resolve_key
from nalar.checks import INT32_MAX, check_integer
from nalar.distribution import Draw, check_draw
from nalar.errors import InvalidType, InvalidValue
from nalar.history import NO_STATES, History, States
from nalar.keys import STREAM_VERSION, Key, fresh_seed
from nalar.rows import FloatRow, as_row, split_rows
from nalar.sampling import Sample, check_chain, draw_sample, report
from nalar.speculative.lossy import Lossy
from nalar.speculative.proposal import NOTHING, Proposal
from nalar.speculative.verdict import Verdict
from nalar.speculative.verifier import RuleLike, check_key, check_proposal, check_rule, decide, describe
from nalar.window import Walk, Window

__all__ = ["Sampler", "Snapshot", "Window"]



@dataclass(frozen=True, slots=True)
class Snapshot:
    """A sampler as one picklable value, states included: for preemption, or to move a sequence to another worker."""

    chain: Chain
    seed: int
    sequence: int
    attempt: int
    prompt: tuple[int, ...]
    log: tuple[tuple[int, States | None], ...]
    draw: Draw
    vocabulary: int | None
    stream: int = STREAM_VERSION
    spent: float = 0.0


class Sampler:
    """``Sampler(chain, seed=None, sequence=0, prompt=(), output=())``: draws token after token, each with the key of its position.

    ``seed``: in [0, 2⁶⁴), or None for fresh entropy; ``sampler.seed`` tells it.  ``prompt``, ``output``: ids so far; a stage that must have
    seen the earlier draws needs ``Sampler.restore(snapshot)`` instead.  ``draw``: "inverse" or "race".  ``vocabulary``: how many ids
    of each row count.

    >>> sampler = Sampler(Chain.parse("temperature(0)"), seed=7, prompt=[1, 5])
    >>> sampler.sample([0.0, 4.0, 1.0]).token, sampler.history
    (1, History(prompt=[1, 5], output=[1]))
    """

    def __init__(
        self, chain: Chain, seed: int | None = None, sequence: int = 0, prompt: Iterable[int] = (), output: Iterable[int] = (), *,
        draw: Draw = "inverse", vocabulary: int | None = None, attempt: int = 0,
    ) -> None:
        self.chain = check_chain(chain)
        self.history = History(prompt, output)
        self.draw = check_draw(draw)
        self.vocabulary = None if vocabulary is None else check_integer("vocabulary", vocabulary, 1, INT32_MAX)
        self.spent = 0.0  # total variation that lossy rules have cost so far; 0 under exact rules
        self._key = Key(fresh_seed() if seed is None else seed, sequence, None, attempt)

    @property
    def seed(self) -> int:
        """The seed in use, chosen or drawn."""
        return self._key.seed

    @property
    def key(self) -> Key:
        """The key of the next draw."""
        return self._key.at(self.history.position)

    def sample(self, logits: Any, *, logprobs: int | None = None, keep_law: bool = False, key: Key | None = None) -> Sample:
        """Draw from one row, commit the token, and return the Sample.  After an error nothing is committed.

        ``key``: for a draft, ``target.key.draft(i)`` of the step's start; None for this sampler's own.
        """
        row = as_row(logits, self.vocabulary)
        return self._take(row, self.key if key is None else resolve_key(key, self.history), logprobs, keep_law)

    def step(self, rows: Any, proposal: Proposal | None = None, rule: RuleLike = None, *, logprobs: int | None = None) -> Verdict:
        """Verify ``proposal`` against ``rows`` [k + 1, vocabulary], commit what is emitted, and return the Verdict.

        Row i follows the first i draft tokens, and its law sees them: penalties, counts, constraints, your own stages.  Without a
        proposal there is one row and one draw.  A row behind the place where the step stops need not be looked at.  ``rule``: see
        ``nalar.verify``; a lossy rule's budget is counted over this sampler's whole life (``spent``).  After an error nothing is
        committed.

        >>> sampler = Sampler(Chain.parse("temperature(0)"), seed=7)
        >>> verdict = sampler.step([[0.0, 4.0], [3.0, 0.0], [0.0, 1.0]], Proposal.point([1, 1]))
        >>> verdict.accepted, verdict.tokens, sampler.history.output.tolist()
        (1, (1, 0), [1, 0])
        """
        if proposal is None or not check_proposal(proposal).tokens:
            return self._plain(rows, rule, logprobs)
        key, listed = self.key, self._rows(rows, proposal.tokens)
        if check_rule(rule, proposal) == "follow":
            return self._follow(listed, proposal, logprobs)
        budgeted = rule.after(self.spent) if isinstance(rule, Lossy) else rule
        with Walk(self.chain, self.history, key, listed, proposal.tokens) as walk:
            decision, chosen = decide(walk, proposal, key, budgeted, self.draw)
        window = walk.window()

        def told(place: int, token: int, drawn: Key) -> Sample:
            return report(listed[place], window[place], token, window[place].logprob(token), drawn, logprobs)

        verdict = describe(decision, chosen, proposal, key, told)
        self.commit(verdict.tokens, window)
        self.spent += verdict.cost
        return verdict

    def distributions(self, rows: Any, draft: Sequence[int] = ()) -> Window:
        """The laws of ``rows`` [k + 1, vocabulary] along a draft of k tokens, each seeing the draft before it.  Commits nothing."""
        tokens = tuple(check_integer("a draft token", token, 0) for token in _listed("draft", draft))
        listed = self._rows(rows, tokens)
        with Walk(self.chain, self.history, self.key, listed, tokens) as walk:
            walk[len(tokens)]
        return walk.window()

    def commit(self, tokens: Iterable[int], window: Window | None = None) -> None:
        """Append emitted tokens.  With their window, the stages with memory observe what they saw along it; then all tokens
        but the last must be the window's draft."""
        emitted = [check_integer("token", token, 0, INT32_MAX) for token in _listed("tokens", tokens)]
        known: list[States | None] = [None] * len(emitted) if window is None else self._observed(emitted, window)
        for token, states in zip(emitted, known, strict=True):
            self.history.append(token, states)

    def rollback(self, n: int) -> None:
        """Drop the last ``n`` output tokens, as if they had never been committed.  The attempt stays: see ``redraw``."""
        self.history.rollback(n)

    def redraw(self) -> None:
        """Take the next attempt of the key: call it when drawing again *because of* what was drawn before.

        The same uniform again would be biased: that it led to the rejected token is known.
        """
        self._key = replace(self._key, attempt=self._key.attempt + 1)

    def fork(self, sequence: int) -> Sampler:
        """An independent sampler with the same past, drawing as another sequence of the same seed."""
        if sequence == self._key.sequence:
            raise InvalidValue(f"sequence must differ from this sampler's, whose noise the fork would reuse, got {sequence}")
        twin = copy(self)
        twin._key, twin.history = replace(self._key, sequence=sequence), self.history.copy()
        return twin

    def snapshot(self) -> Snapshot:
        """This sampler as a value; ``Sampler.restore`` goes on from it as if nothing had happened."""
        key, history = self._key, self.history
        prompt, log = tuple(history.prompt.tolist()), tuple(history.log())
        return Snapshot(self.chain, key.seed, key.sequence, key.attempt, prompt, log, self.draw, self.vocabulary, spent=self.spent)

    @classmethod
    def restore(cls, snapshot: Snapshot) -> Sampler:
        """The sampler that ``snapshot`` was taken of."""
        if not isinstance(snapshot, Snapshot):
            raise InvalidType(f"snapshot must be what sampler.snapshot() gave, got {snapshot!r}")
        if snapshot.stream != STREAM_VERSION:
            raise InvalidValue(f"snapshot must be of stream version {STREAM_VERSION}, which draws its tokens, got {snapshot.stream}")
        sampler = cls(
            snapshot.chain, seed=snapshot.seed, sequence=snapshot.sequence, prompt=snapshot.prompt,
            draw=snapshot.draw, vocabulary=snapshot.vocabulary, attempt=snapshot.attempt,
        )
        sampler.spent = snapshot.spent
        for token, states in snapshot.log:
            sampler.history.append(token, states)
        return sampler

    def _take(self, row: FloatRow, key: Key, logprobs: int | None, keep_law: bool = False) -> Sample:
        """Draw and commit: by the kernels alone where the token is all that is asked for."""
        fast = self.chain.draw(row, self.history, key, self.draw)
        if logprobs is None and not keep_law and fast is not None:
            self.history.append(fast[0], NO_STATES)
            return Sample(fast[0], fast[1], key)
        evaluation = self.chain.evaluate(row, self.history, key)
        drawn = draw_sample(row, evaluation, key, logprobs, self.draw, keep_law, fast)
        self.history.append(drawn.token, evaluation.after(drawn.token))
        return drawn

    def _plain(self, rows: Any, rule: RuleLike, logprobs: int | None) -> Verdict:
        """A step without a draft: one row, one draw."""
        listed = split_rows(rows)
        _check_size(listed, 0)
        if rule is not None:
            check_rule(rule, NOTHING)
        return Verdict(0, (self._take(as_row(listed[0], self.vocabulary), self.key, logprobs),))

    def _follow(self, rows: list[FloatRow], proposal: Proposal, logprobs: int | None) -> Verdict:
        """``rules.follow`` as it runs here: sample row by row for as long as the draws are the draft, with nothing made but the draws."""
        check_key(self.key, proposal)
        start, revision = self.history.position, self.history.revision
        samples: list[Sample] = []
        try:
            for row, drafted in zip(rows, (*proposal.tokens, None), strict=True):
                samples.append(self._take(row, self.key, logprobs))
                if samples[-1].token != drafted:
                    break
        except BaseException:
            self.history.rollback(self.history.position - start)
            self.history.revision = revision
            raise
        return Verdict(len(samples) - 1, tuple(samples), len(proposal))

    def _rows(self, rows: Any, draft: tuple[int, ...]) -> list[FloatRow]:
        """One row more than draft tokens, all of which are in the vocabulary."""
        listed = [as_row(row, self.vocabulary) for row in split_rows(rows)]
        for token in draft:
            check_integer("a draft token", token, 0, listed[0].size - 1 if listed else INT32_MAX)
        _check_size(listed, len(draft))
        return listed

    def _observed(self, emitted: list[int], window: Window) -> list[States | None]:
        if not isinstance(window, Window):
            raise InvalidType(f"window must be what sampler.distributions(…) gave, got {window!r}")
        if window.history is not self.history or window.revision != self.history.revision or window.key != self.key:
            raise InvalidValue("window must belong to this point of the history, got one made before it changed")
        if not 1 <= len(emitted) <= len(window) or tuple(emitted[:-1]) != window.draft[: len(emitted) - 1]:
            raise InvalidValue(f"tokens must be the window's draft {list(window.draft)} as far as accepted, then one more, got {emitted}")
        for token, evaluation in zip(emitted, window.evaluations, strict=False):
            if not evaluation.law.prob(token) > 0:
                raise InvalidValue(f"tokens must be drawn from the window's laws, got {token}, which has probability 0 there")
        last = window.evaluations[len(emitted) - 1]
        return [*window.states[: len(emitted) - 1], last.after(emitted[-1])]


def _check_size(rows: list[Any], drafted: int) -> None:
    if len(rows) != drafted + 1:
        wanted = f"rows must hold {drafted + 1} row{'s' if drafted else ''}, one more than the {drafted} draft tokens"
        raise InvalidValue(f"{wanted}, got {len(rows)}")


def _listed(name: str, tokens: Any) -> Iterable[Any]:
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Iterable):
        raise InvalidType(f"{name} must be a sequence of token ids, got {tokens!r}")
    return tokens
