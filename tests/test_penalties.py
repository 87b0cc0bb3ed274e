"""Penalties: which occurrences count (scope, window, ignored prefix, decay), and what they do to a logit."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalar import Chain, History, NalarError
from nalar.errors import BrokenRow, InvalidValue
from nalar.stages import Ban, Frequency, Presence, Repetition, TopK

INF = math.inf
SIZE = 6
ROWS = st.lists(st.sampled_from([-INF, -2.0, -0.5, 0.0, 0.25, 3.0]), min_size=SIZE, max_size=SIZE).filter(lambda row: max(row) > -INF)
TOKENS = st.lists(st.integers(0, SIZE - 1) | st.sampled_from([-1, -(2**31), SIZE, 2**31 - 1]), max_size=8)
FIELDS = st.fixed_dictionaries({
    "scope": st.sampled_from(["all", "output", "prompt"]),
    "window": st.none() | st.integers(0, 12),
    "ignore_prefix": st.integers(0, 5),
}).flatmap(lambda fields: st.fixed_dictionaries({
    **{name: st.just(value) for name, value in fields.items()},
    "decay": st.none() if fields["window"] is None else st.none() | st.integers(1, 8),
}))


def logits(row: list[float], stages: Any, history: History) -> list[float]:
    return Chain(stages if isinstance(stages, list) else [stages]).candidates(row, history).logits.tolist()


def fades(
    token: int, prompt: list[int], output: list[int], scope: str, window: int | None, ignore_prefix: int, decay: int | None
) -> list[float]:
    """How much each occurrence of ``token`` counts, oldest first: the words of the stage table, place by place."""
    found = []
    for place, other in enumerate(prompt + output):
        distance = len(prompt) + len(output) - place  # the newest token has distance 1
        inside = place < len(prompt)
        if other != token or (inside and place < ignore_prefix) or (scope != "all" and inside != (scope == "prompt")):
            continue
        if window is None or distance <= window:
            found.append(1.0)
        elif decay is not None and distance < window + decay:
            found.append(1 - (distance - window) / decay)
    return found


def expected(kind: type, value: float, logit: float, found: list[float]) -> float:
    """The formula of one stage for one logit."""
    if not found or logit == -INF:
        return logit
    newest = found[-1]
    if kind is Frequency:
        return logit - value * sum(found)
    if kind is Presence:
        return logit - value * newest
    full = logit / value if logit > 0 else logit * value
    return logit * (1 - newest) + full * newest


@pytest.mark.parametrize("kind", [Repetition, Frequency, Presence])
@given(row=ROWS, prompt=TOKENS, output=TOKENS, value=st.sampled_from([0.5, 1.0, 1.5, 2.0, 4.0]), fields=FIELDS)
def test_a_penalty_equals_its_restatement(
    kind: Any, row: list[float], prompt: list[int], output: list[int], value: float, fields: dict[str, Any]
) -> None:
    found = [expected(kind, value, logit, fades(token, prompt, output, **fields)) for token, logit in enumerate(row)]
    assert logits(row, kind(value, **fields), History(prompt, output)) == pytest.approx(found, rel=1e-14, abs=1e-15)


# --- what each does ----------------------------------------------------------------------------------------------------


def test_repetition_divides_positive_and_multiplies_other_logits_once_for_an_id() -> None:
    history = History(prompt=[0, 1], output=[2, 0, 0, 3])
    assert logits([3.0, -3.0, 0.0, -INF, 1.0], Repetition(2.0), history) == [1.5, -6.0, 0.0, -INF, 1.0]
    assert logits([3.0, -3.0], Repetition(0.5), history) == [6.0, -1.5]


def test_frequency_counts_and_presence_does_not() -> None:
    history = History(prompt=[0], output=[1, 2, 2, 1, 2])
    assert logits([1.0, 1.0, 1.0, 1.0], Frequency(0.5), history) == [1.0, 0.0, -0.5, 1.0]
    assert logits([1.0, 1.0, 1.0, 1.0], Presence(0.5), history) == [1.0, 0.5, 0.5, 1.0]
    assert logits([1.0, 1.0], Frequency(-1.0), history) == [1.0, 3.0]


def test_the_default_scopes_are_all_for_repetition_and_output_for_the_others() -> None:
    history = History(prompt=[0], output=[1])
    assert logits([1.0, 1.0, 1.0], Repetition(2), history) == [0.5, 0.5, 1.0]
    assert logits([1.0, 1.0, 1.0], Frequency(1), history) == [1.0, 0.0, 1.0]
    assert logits([1.0, 1.0, 1.0], Presence(1), history) == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(("scope", "result"), [("all", [0.5, 0.5, 1.0]), ("output", [1.0, 0.5, 1.0]), ("prompt", [0.5, 1.0, 1.0])])
def test_scope_chooses_prompt_output_or_both(scope: Any, result: list[float]) -> None:
    for stage in (Repetition(2, scope), Frequency(0.5, scope), Presence(0.5, scope)):
        assert logits([1.0, 1.0, 1.0], stage, History(prompt=[0], output=[1])) == result


@pytest.mark.parametrize(
    ("scope", "window", "hit"),
    [
        ("all", None, [0, 1, 2, 3]), ("all", 3, [1, 2, 3]), ("all", 1, [3]), ("all", 0, []), ("all", 100, [0, 1, 2, 3]),
        ("output", 3, [2, 3]), ("output", 1, [3]), ("prompt", 3, [1]), ("prompt", 2, []), ("prompt", 4, [0, 1]),
    ],
)
def test_the_window_is_of_the_total_and_comes_before_the_scope(scope: Any, window: int | None, hit: list[int]) -> None:
    history = History(prompt=[0, 1], output=[2, 3])
    penalised = [1.0 if token in hit else 2.0 for token in range(5)]
    for stage in (Repetition(2, scope, window), Frequency(1, scope, window), Presence(1, scope, window)):
        assert logits([2.0] * 5, stage, history) == penalised


def test_the_window_counts_ids_that_are_not_penalised() -> None:
    history = History(prompt=[0], output=[-1, SIZE + 9, 2**31 - 1])
    assert logits([1.0] * SIZE, Presence(1, "all", 3), history) == [1.0] * SIZE
    assert logits([1.0] * SIZE, Presence(1, "all", 4), history) == [0.0] + [1.0] * (SIZE - 1)


@pytest.mark.parametrize(("ignored", "hit"), [(0, [0, 1, 2]), (1, [1, 2]), (2, [2]), (100, [2])])
def test_the_ignored_prefix_is_of_the_prompt(ignored: int, hit: list[int]) -> None:
    history = History(prompt=[0, 1], output=[2])
    for stage in (Repetition(2, "all", None, ignored), Presence(0.5, "all", None, ignored), Frequency(0.5, "all", 50, ignored)):
        assert logits([1.0] * 4, stage, history) == [0.5 if token in hit else 1.0 for token in range(4)]


def test_an_ignored_prefix_does_not_move_the_window() -> None:
    assert logits([1.0] * 4, Presence(1, "all", 2, 1), History(prompt=[0, 1, 2])) == [1.0, 0.0, 0.0, 1.0]


def test_decay_fades_behind_the_window() -> None:
    history = History(output=[0, 1, 2, 3, 4])  # distances 5, 4, 3, 2, 1
    faded = [1.0, 0.75, 0.5, 0.25, 0.0, 1.0]  # window 1, decay 4: 0, 1/4, 1/2, 3/4, 1 of the penalty
    assert logits([1.0] * 6, Presence(1, "output", 1, 0, 4), history) == faded
    assert logits([1.0] * 6, Frequency(1, "output", 1, 0, 4), history) == faded
    assert logits([2.0] * 6, Repetition(2, "output", 1, 0, 4), history) == [2.0, 1.75, 1.5, 1.25, 1.0, 2.0]


def test_decay_sums_for_frequency_and_takes_the_newest_for_the_others() -> None:
    history = History(output=[0, 0, 1])  # token 0 at distances 3 and 2: 1/2 and 3/4 of the penalty
    assert logits([4.0, 4.0], Frequency(1, "output", 1, 0, 4), history) == [2.75, 3.0]
    assert logits([4.0, 4.0], Presence(1, "output", 1, 0, 4), history) == [3.25, 3.0]
    assert logits([4.0, 4.0], Repetition(2, "output", 1, 0, 4), history) == [2.5, 2.0]


# --- together, and at the edges ----------------------------------------------------------------------------------------


def test_the_order_of_penalties_matters_and_is_repetition_frequency_presence() -> None:
    history = History(output=[0])
    stages = [Repetition(2), Frequency(0.25), Presence(0.5)]
    results = {order: logits([1.0, 0.0], [stages[n] for n in order], history)[0] for order in itertools.permutations(range(3))}
    assert results[0, 1, 2] == results[0, 2, 1] == -0.25  # 1/2 − 1/4 − 1/2
    assert results[1, 2, 0] == results[2, 1, 0] == 0.125  # (1 − 3/4)/2
    assert results[1, 0, 2] == -0.125  # (1 − 1/4)/2 − 1/2
    assert results[2, 0, 1] == 0.0  # (1 − 1/2)/2 − 1/4
    order = Chain.ORDER
    assert order.index("repetition") < order.index("frequency") < order.index("presence")


@pytest.mark.parametrize(
    ("text", "history", "logit"),
    [
        ("repetition(2) | presence(0.5)", History(output=[0]), 0.0),  # llama.cpp, KoboldCpp, exllama: 1/2 − .5
        ("presence(0.5) | repetition(2)", History(output=[0]), 0.25),  # mistral.rs: (1 − .5)/2
        ("repetition(2) | presence(0.5, scope='all')", History(prompt=[0]), 0.0),  # llama.cpp: presence sees the prompt
        ("repetition(2) | presence(0.5)", History(prompt=[0]), 0.5),  # mistral.rs: it does not
        ("repetition(2, window=64) | presence(0.5, scope='all', window=64)", History(prompt=[0] + [3] * 64), 1.0),  # llama.cpp: 65 back
        ("repetition(2)", History(prompt=[0] + [3] * 64), 0.5),
    ],
)
def test_what_engines_do_can_be_written_down(text: str, history: History, logit: float) -> None:
    assert Chain.parse(text).candidates([1.0, 0.0, 0.0, 0.0], history).logits[0] == logit


OF_EACH_KIND = [Repetition(1.5), Frequency(2.0), Presence(2.0), Frequency(2.0, "all", 5), Repetition(3, decay=2, window=1)]


@pytest.mark.parametrize("stage", OF_EACH_KIND)
def test_ids_outside_the_vocabulary_are_not_penalised(stage: Any) -> None:
    assert logits([1.0, 2.0], stage, History(prompt=[-1, 2, 2**31 - 1], output=[-(2**31), 7])) == [1.0, 2.0]


@pytest.mark.parametrize("value", [0.5, 2.0, 1e308, -1e308])
def test_a_masked_token_stays_masked_whatever_the_penalty(value: float) -> None:
    history = History([1, 1], [1, 1])
    for stage in [Frequency(value), Presence(value), *([Repetition(value)] if value > 0 else [])]:
        assert logits([0.0, 1.0, 0.0], [Ban([1]), stage], history) == [0.0, -INF, 0.0]


@pytest.mark.parametrize("stage", [Frequency(1e308), Frequency(1e308, "all", 9), Presence(1.7e308), Repetition(1.7e308)])
def test_a_penalty_that_overflows_forbids_without_a_warning(stage: Any) -> None:
    assert logits([0.0, -1e308, 0.0], stage, History([1, 1], [1, 1]))[1] == -INF


def test_a_boost_that_overflows_is_an_error_in_the_stage_s_name() -> None:
    with pytest.raises(BrokenRow, match="frequency left a logit of inf") as caught:
        logits([0.0, 1.0], Frequency(-1e308), History(output=[1, 1]))
    assert caught.value.stage == "frequency"


def test_removed_tokens_are_passed_over() -> None:
    left = Chain([TopK(2), Presence(1.0)]).candidates([0.0, 5.0, 4.0, -1.0], History(output=[0, 2, 3]))
    assert (left.ids.tolist(), left.logits.tolist()) == ([1, 2], [5.0, 3.0])


@pytest.mark.parametrize("decay", [None, 1, 2**70])
@pytest.mark.parametrize("kind", [Repetition, Frequency, Presence])
def test_a_window_past_every_machine_integer_is_no_window(kind: Any, decay: int | None) -> None:
    row, history = [1.0, 2.0, -1.0], History([0, 1], [2, 2])
    for window in (2**63 - 1, 2**63, 2**200):
        assert logits(row, kind(1.5, "all", window=window, decay=decay), history) == logits(row, kind(1.5, "all"), history)


@given(ROWS, TOKENS, TOKENS)
def test_neutral_values_are_the_identity(row: list[float], prompt: list[int], output: list[int]) -> None:
    history = History(prompt, output)
    for stage in (Repetition(1), Frequency(0), Presence(0), Repetition(2, window=0), Presence(2, ignore_prefix=9, scope="prompt")):
        assert logits(row, stage, history) == row


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Repetition(0), "repetition must be a finite number > 0, got 0"),
        (lambda: Repetition(-1.5), "repetition must be .* > 0, got -1.5"),
        (lambda: Frequency(INF), "frequency must be a finite number, got inf"),
        (lambda: Presence("1"), "presence must .* got '1'"),  # type: ignore[arg-type]
        (lambda: Presence(1, "input"), "scope must be one of 'all', 'output', 'prompt', got 'input'"),  # type: ignore[arg-type]
        (lambda: Presence(1, window=-1), "window must be an integer >= 0, got -1"),
        (lambda: Presence(1, window=2.0), "window must"),  # type: ignore[arg-type]
        (lambda: Presence(1, ignore_prefix=-1), "ignore_prefix must"),
        (lambda: Presence(1, ignore_prefix=None), "ignore_prefix must"),  # type: ignore[arg-type]
        (lambda: Presence(1, window=3, decay=0), "decay must be an integer >= 1, got 0"),
    ],
)
def test_fields_are_checked(make: Any, words: str) -> None:
    with pytest.raises(NalarError, match=words):
        make()
    with pytest.raises(InvalidValue, match="decay must be None without a window"):
        Presence(1, decay=3)
