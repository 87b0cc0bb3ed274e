"""The stage contract as laws that any stage's author can run: ``check_stage(MyStage(0.5), neutral=MyStage(1.0))``.

Each law takes a `Trial`: the stage, and what its author claims of it.  ``LAWS`` lists them; the first that is broken fails with
its name in the traceback.  A vocabulary of ``SIZE`` ids is used, so ids among the stage's parameters must be below that.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass

import numpy as np
import numpy.typing as npt

from nalar import Chain, Distribution, History, Key, Sampler, sample, sample_batch
from nalar.candidates import Candidates
from nalar.errors import BrokenRow, KeyRequired
from nalar.stages import Context, Memory, Stage, Temperature, TopK

__all__ = ["LAWS", "SIZE", "Trial", "check_stage"]

SIZE = 12
KEY = Key(seed=11, sequence=2)
PROMPT, OUTPUT = (3, 1, 1, -1, 8), (0, 5, 5, 2)  # −1: an image placeholder

Row = npt.NDArray[np.float64]
Renamed = Callable[[Stage, list[int]], Stage]


def unchanged(stage: Stage, place: list[int]) -> Stage:
    """A stage that knows no ids means the same when they are renamed."""
    del place
    return stage


@dataclass(frozen=True)
class Trial:
    """A stage with its author's claims.

    ``neutral``: the same stage where it does nothing.  ``renamed``: the stage where token t is called ``place[t]``, for stages
    with ids among their parameters; None if its meaning hangs on the ids themselves.  ``may_empty``: it may forbid everything.
    """

    stage: Stage
    neutral: Stage | None = None
    renamed: Renamed | None = unchanged
    may_empty: bool = False

    @property
    def chain(self) -> Chain:
        return Chain([self.stage])

    @property
    def remembers(self) -> bool:
        return isinstance(self.stage, Memory)


def check_stage(stage: Stage, *, neutral: Stage | None = None, renamed: Renamed | None = unchanged, may_empty: bool = False) -> None:
    """Run every law on ``stage``."""
    for law in LAWS:
        law(Trial(stage, neutral, renamed, may_empty))


def rows() -> Iterator[Row]:
    """Plain, steep, flat and masked rows; ties; a token alone."""
    random = np.random.default_rng(5)
    plain = random.normal(0, 2, SIZE)
    masked = plain.copy()
    masked[[0, 4, 7]] = -np.inf
    alone = np.full(SIZE, -np.inf)
    alone[6] = -3.0
    yield from (plain, random.normal(0, 40, SIZE), np.round(plain), np.zeros(SIZE), masked, alone, plain + 50, plain - 50)


def histories() -> Iterator[History]:
    """Nothing said; a prompt; prompt and output.  A stage with memory learns its output in `with_output`."""
    yield from (History(), History(PROMPT), History(PROMPT, OUTPUT))


def settings(trial: Trial) -> Iterator[tuple[Row, History]]:
    for row in rows():
        for history in histories():
            if not (trial.remembers and history.position):  # ids alone are not enough for every memory
                yield row, history


def law_of(trial: Trial, row: Row, history: History, key: Key | None = KEY, stage: Stage | None = None) -> Distribution | None:
    """The stage's law; None where it emptied the row, which only a constraint may (``may_empty=True``)."""
    try:
        return Chain([stage or trial.stage]).distribution(row, history, key)
    except BrokenRow as error:
        if not trial.may_empty or error.stage != trial.stage.name:
            raise
        return None


def same(law: Distribution | None, other: Distribution | None) -> bool:
    if law is None or other is None:
        return law is other
    return np.array_equal(law.ids, other.ids) and np.array_equal(law.probs, other.probs)


def it_is_a_value(trial: Trial) -> None:
    stage = trial.stage
    assert is_dataclass(stage), "a stage is a frozen dataclass"
    assert hash(stage) == hash(pickle.loads(pickle.dumps(stage)))
    assert stage == pickle.loads(pickle.dumps(stage))
    for field in fields(stage):
        try:
            setattr(stage, field.name, getattr(stage, field.name))
        except FrozenInstanceError:
            continue
        raise AssertionError(f"{field.name} can be changed: write @dataclass(frozen=True)")


def its_text_gives_it_back(trial: Trial) -> None:
    text, known = str(trial.chain), {trial.stage.name: type(trial.stage)}
    assert Chain.parse(text, stages=known) == trial.chain
    assert str(Chain.parse(text, stages=known)) == text


def it_is_a_function_of_its_arguments(trial: Trial) -> None:
    for row, history in settings(trial):
        assert same(law_of(trial, row, history), law_of(trial, row, history.copy()))


def it_changes_nothing_it_is_given(trial: Trial) -> None:
    for row, history in settings(trial):
        ids, logits = np.arange(SIZE, dtype=np.int32), row.copy()
        ids.flags.writeable = logits.flags.writeable = False  # writing raises
        state = trial.stage.initial(Context(history, SIZE)) if isinstance(trial.stage, Memory) else None
        told = (len(history), history.counts.ids.tolist(), history.revision)
        trial.stage.apply(Candidates(ids, logits), Context(history, SIZE, KEY.at(history.position), 0, state))
        assert told == (len(history), history.counts.ids.tolist(), history.revision)
        assert np.array_equal(logits, row)


def it_keeps_a_token_and_ids_ascend(trial: Trial) -> None:
    for row, history in settings(trial):
        law_of(trial, row, history)  # the chain itself checks shape, dtype, order and range of what a stage leaves


def what_was_forbidden_stays_forbidden(trial: Trial) -> None:
    for row, history in settings(trial):
        law = law_of(trial, row, history)
        assert law is None or np.isfinite(row[law.ids]).all()


def it_works_on_what_an_earlier_stage_left(trial: Trial) -> None:
    for row, history in settings(trial):
        for first in (TopK(3), Temperature(0), TopK(1)):
            try:
                law = Chain([first, trial.stage]).distribution(row, history, KEY)
            except BrokenRow:
                if not trial.may_empty:
                    raise
            else:
                assert np.isin(law.ids, Chain([first]).distribution(row).ids).all()


def neutral_is_the_identity(trial: Trial) -> None:
    if trial.neutral is not None:
        for row, history in settings(trial):
            assert same(law_of(trial, row, history, stage=trial.neutral), Chain().distribution(row))


def renaming_the_tokens_renames_the_law(trial: Trial) -> None:
    """On rows without equal logits, where no rule for ties is asked."""
    if trial.renamed is None:
        return
    for seed, (row, history) in enumerate(settings(trial)):
        finite = row[np.isfinite(row)]
        if np.unique(finite).size < finite.size:
            continue
        place = np.random.default_rng(seed).permutation(SIZE).tolist()
        moved = np.empty(SIZE)
        moved[place] = row
        prompt, output = ([place[token] if token >= 0 else token for token in ids.tolist()] for ids in (history.prompt, history.output))
        law, other = law_of(trial, row, history), law_of(trial, moved, History(prompt, output), stage=trial.renamed(trial.stage, place))
        if law is None or other is None:
            assert law is other
            continue
        assert sorted(place[token] for token in law.ids.tolist()) == other.ids.tolist()
        np.testing.assert_allclose([other.prob(place[token]) for token in law.ids.tolist()], law.probs, rtol=1e-11)


def chance_comes_from_the_key_alone(trial: Trial) -> None:
    """Without a key the stage either needs none, and its law is the same, or raises KeyRequired."""
    for row, history in settings(trial):
        try:
            without = law_of(trial, row, history, key=None)
        except KeyRequired:
            continue
        assert same(without, law_of(trial, row, history, key=Key(1, position=7)))


def a_batch_equals_its_rows_one_by_one(trial: Trial) -> None:
    chosen = list(settings(trial))
    keys = [Key(3, sequence=index) for index in range(len(chosen))]
    table, pasts = [row for row, _ in chosen], [history for _, history in chosen]
    batch = sample_batch(table, trial.chain, keys, pasts, threads=2, errors="return")
    for row, history, key, drawn, error in zip(table, pasts, keys, batch.samples, batch.errors, strict=True):
        if error is None:
            assert drawn == sample(row, trial.chain, key, history)
        else:
            assert isinstance(error, BrokenRow), repr(error)
            assert trial.may_empty


def sampler_and_rows(trial: Trial) -> tuple[Sampler, list[Row]]:
    """A sampler with the stage between two others, and rows that a constraint is unlikely to empty."""
    random = np.random.default_rng(8)
    return Sampler(Chain([Temperature(0.9), trial.stage, TopK(SIZE)]), seed=4, prompt=PROMPT), list(random.normal(0, 2, (6, SIZE)))


def commit_then_rollback_is_as_if_never_committed(trial: Trial) -> None:
    sampler, table = sampler_and_rows(trial)
    tokens = [sampler.sample(row).token for row in table]
    sampler.rollback(4)
    assert [sampler.sample(row).token for row in table[2:]] == tokens[2:]


def a_window_sees_what_drawing_sees(trial: Trial) -> None:
    sampler, table = sampler_and_rows(trial)
    plain = sampler.fork(1)
    drawn = [plain.sample(row, keep_law=True) for row in table[:3]]
    draft = [each.token for each in drawn]
    if chance_needed(trial):  # the window belongs to the sampler's own key, the fork to another
        sampler = plain
        sampler.rollback(3)
    window = sampler.distributions(np.array(table[:3]), draft[:2])
    assert sampler.history.position == 0
    assert all(same(law, each.law) for law, each in zip(window.laws, drawn, strict=True))
    sampler.commit(draft, window)
    assert sampler.history.output.tolist() == draft
    assert same(sampler.distributions([table[3]])[0], plain_after(trial, sampler, draft, table))


def chance_needed(trial: Trial) -> bool:
    try:
        Chain([trial.stage]).distribution(next(rows()), History(PROMPT))
    except (KeyRequired, BrokenRow):
        return True
    return False


def plain_after(trial: Trial, like: Sampler, draft: list[int], table: list[Row]) -> Distribution:
    """The law after ``draft`` where each token was committed by itself, not in a window of three."""
    other = Sampler(like.chain, like.seed, like.key.sequence, PROMPT)
    for token, row in zip(draft, table, strict=False):
        other.commit([token], other.distributions([row]))
    return other.distributions([table[3]])[0]


def a_snapshot_goes_on_as_if_nothing_had_happened(trial: Trial) -> None:
    sampler, table = sampler_and_rows(trial)
    for row in table[:3]:
        sampler.sample(row)
    moved = Sampler.restore(pickle.loads(pickle.dumps(sampler.snapshot())))
    assert [moved.sample(row).token for row in table[3:]] == [sampler.sample(row).token for row in table[3:]]


LAWS: tuple[Callable[[Trial], None], ...] = (
    it_is_a_value,
    its_text_gives_it_back,
    it_is_a_function_of_its_arguments,
    it_changes_nothing_it_is_given,
    it_keeps_a_token_and_ids_ascend,
    what_was_forbidden_stays_forbidden,
    it_works_on_what_an_earlier_stage_left,
    neutral_is_the_identity,
    renaming_the_tokens_renames_the_law,
    chance_comes_from_the_key_alone,
    a_batch_equals_its_rows_one_by_one,
    commit_then_rollback_is_as_if_never_committed,
    a_window_sees_what_drawing_sees,
    a_snapshot_goes_on_as_if_nothing_had_happened,
)
