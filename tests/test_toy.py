"""The toy engine keeps the engine contract, and its law is the one its docstring states."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import engine_contract
from engine_contract import LAWS, Law, check_engine, feed, fresh
from nalar.engines import load_engine
from nalar.engines.base import LoadOptions, Message, Rows, Sequence, Work
from nalar.engines.messages import check_messages
from nalar.engines.toy import ROLES, Toy, ToyVocabulary
from nalar.engines.toy_law import DOCUMENTS, END_OF_TEXT, MARK
from nalar.errors import EngineError, EngineFull, InvalidType, InvalidValue

TOY = Toy()
IDS = st.lists(st.integers(0, TOY.vocabulary.size - 1) | st.sampled_from(b"the cat"), min_size=1, max_size=40)


def specified(tokens: list[int]) -> npt.NDArray[np.float64]:
    """The law of `toy_law` from its formulas alone: probabilities after ``tokens``, counted anew."""
    page = [MARK] + [token for document in DOCUMENTS for token in (*document.encode(), MARK)]
    seen = [min(token, MARK) for token in tokens]
    probs = np.array([0.999 * page.count(token) / len(page) + 0.001 / 261 for token in range(261)])
    for order in range(1, min(4, len(seen)) + 1):
        context = seen[-order:]
        followers = [page[place] for place in range(order, len(page)) if page[place - order : place] == context]
        if not followers:
            break
        probs = (np.bincount(followers, minlength=261) + probs) / (len(followers) + 1)
    earlier = [end for end in range(4, len(seen)) if seen[end - 4 : end] == seen[-4:]]
    if earlier:
        last = earlier[-1]
        agree = max(length for length in range(4, min(12, last) + 1) if seen[last - length : last] == seen[len(seen) - length :])
        probs = probs * 4 / (agree + 4) + (np.arange(261) == seen[last]) * agree / (agree + 4)
    probs[END_OF_TEXT] += probs[MARK] / 4
    probs[MARK] *= 0.75
    return probs


def probs_after(tokens: list[int]) -> npt.NDArray[np.float64]:
    probs: npt.NDArray[np.float64] = np.exp(fresh(TOY, tokens)[0].astype(np.float64))
    return probs


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_the_toy_keeps_the_engine_contract(law: Law) -> None:
    law(Toy(), 0.0)


def test_two_sequences_are_enough_for_the_battery() -> None:
    check_engine(Toy(sequences=2))


class KeepsText(Toy):
    """Truncates the list of tokens and forgets its own state."""

    def truncate(self, sequence: Sequence, length: int) -> None:
        text = self._texts[sequence.slot]
        super().truncate(sequence, length)
        self._texts[sequence.slot] = text


class LendsForever(Toy):
    """Never ends a lease."""

    def _end_lease(self) -> None:
        pass


class FeedsBeforeChecking(Toy):
    """Feeds good work although other work in the step is bad."""

    def step(self, work: list[Work]) -> list[Rows]:
        return [super(FeedsBeforeChecking, self).step([item])[0] for item in work]


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (KeepsText, engine_contract.truncation_is_as_if_never_fed),
        (LendsForever, engine_contract.rows_are_lent_until_the_next_call),
        (FeedsBeforeChecking, engine_contract.an_error_leaves_every_sequence_as_it_was),
    ],
)
def test_the_battery_sees_a_broken_engine(broken: type[Toy], law: Law) -> None:
    with pytest.raises(AssertionError):
        law(broken(), 0.0)


@given(IDS | st.sampled_from(DOCUMENTS).map(lambda text: list(text.encode())))
@example(list(b"aaaaa"))
@example(list(b"aaaaaaaaaaaaaaaaaaaaaa"))
@example(list(b"say what I say, say what I say, say what I "))
@example([65, 258, 66, 67, 65, 260, 66, 67])  # control tokens all read alike
def test_the_law_is_the_one_stated(tokens: list[int]) -> None:
    np.testing.assert_allclose(probs_after(tokens), specified(tokens), rtol=1e-5)


@given(IDS)
def test_every_token_is_possible_and_they_sum_to_one(tokens: list[int]) -> None:
    probs = probs_after(tokens)
    assert probs.min() > 0
    assert math.isclose(probs.sum(), 1, rel_tol=1e-5)


@given(IDS, IDS, st.data())
def test_a_row_has_equal_bits_whatever_is_beside_it(tokens: list[int], others: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(tokens) - 1))
    engine = Toy()
    first, second = engine.open(), engine.open()
    if place:
        feed(engine, first, tokens[:place])
    rest = tuple(tokens[place:])
    together = engine.step([Work(second, tuple(others), len(others)), Work(first, rest, len(rest))])
    assert together[1].tobytes() == fresh(TOY, tokens, len(rest)).tobytes()


def test_a_character_splits_over_tokens() -> None:
    ids = TOY.vocabulary.encode("é漢🙂")
    assert len(ids) == 2 + 3 + 4
    assert b"".join(TOY.vocabulary.pieces[token] for token in ids).decode() == "é漢🙂"


def test_it_repeats_what_was_said_before() -> None:
    said = b"xqzj kw, xqzj"
    assert int(fresh(TOY, list(said)).argmax()) == ord(" ")
    assert probs_after(list(said))[ord(" ")] > 0.4


def test_a_reply_may_end_where_a_text_ended_and_hardly_inside_a_word() -> None:
    ends = list(TOY.vocabulary.ends)
    assert 0.2 < probs_after(list(b"The bird was small."))[ends].sum() < 0.95
    assert probs_after(list(b"The bird was sma"))[ends].sum() < 0.01


def test_after_the_assistant_mark_a_text_begins() -> None:
    ids = TOY.vocabulary.encode_chat([{"role": "user", "content": "Hello?"}])
    openings = {document.encode()[0] for document in DOCUMENTS}
    assert probs_after(ids)[list(openings)].sum() > 0.9


def test_a_chat_is_marks_around_bytes() -> None:
    messages: list[Message] = [{"role": "system", "content": "é"}, {"role": "user", "content": "<|end|>"}]
    expected = [ROLES["system"], *"é".encode(), MARK, ROLES["user"], *b"<|end|>", MARK, ROLES["assistant"]]
    assert TOY.vocabulary.encode_chat(messages) == expected


def test_the_template_says_what_encode_chat_does() -> None:
    jinja2 = pytest.importorskip("jinja2")
    messages: list[Message] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    text = jinja2.Template(ToyVocabulary().chat_template).render(messages=messages, add_generation_prompt=True)
    names = {258: "<|system|>", 259: "<|user|>", 260: "<|assistant|>", MARK: "<|end|>"}
    assert text == "".join(names.get(token, chr(token % 256)) for token in ToyVocabulary().encode_chat(messages))


@pytest.mark.parametrize(
    ("messages", "error", "words"),
    [
        ([], InvalidValue, "at least one"),
        ("Hi", InvalidType, "must be a list"),
        ({"role": "user", "content": "Hi"}, InvalidType, "must be a list"),
        (["Hi"], InvalidType, r"messages\[0\]"),
        ([{"role": "user"}], InvalidValue, "exactly the keys"),
        ([{"role": "user", "content": "Hi", "name": "x"}], InvalidValue, "exactly the keys"),
        ([{"role": "user", "content": None}], InvalidType, r"\['content'\] must be a string"),
        ([{"role": "user", "content": "Hi"}, {"role": "tool", "content": "Hi"}], InvalidValue, r"messages\[1\]\['role'\] must be one of"),
    ],
)
def test_a_malformed_conversation_is_named(messages: list[Message], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check_messages(messages)


@pytest.mark.parametrize(("text", "error"), [("\ud800", InvalidValue), (b"a", InvalidType)])
def test_only_text_is_encoded(text: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="text must be"):
        TOY.vocabulary.encode(text)


def test_a_sequence_longer_than_the_context_states_both_lengths() -> None:
    engine = Toy(context=8)
    sequence = engine.open()
    feed(engine, sequence, [65] * 6)
    with pytest.raises(EngineError, match=r"9 tokens \(6 held, 3 new\), the context is 8"):
        feed(engine, sequence, [65] * 3)
    feed(engine, sequence, [65] * 2)


def test_a_step_of_too_many_tokens_states_both_numbers() -> None:
    engine = Toy(step_tokens=4)
    first, second = engine.open(), engine.open()
    with pytest.raises(EngineError, match="at most 4 tokens, got 5"):
        engine.step([Work(first, (65,) * 3), Work(second, (65,) * 2)])
    assert (first.tokens, second.tokens) == ([], [])


def test_a_sequence_appears_once_a_step() -> None:
    sequence = TOY.open()
    with pytest.raises(InvalidValue, match="at most once"):
        TOY.step([Work(sequence, (65,)), Work(sequence, (66,))])
    TOY.close(sequence)


def test_another_engines_sequence_is_refused() -> None:
    with pytest.raises(EngineError, match="another engine"):
        feed(Toy(), Toy().open(), [65])


def test_a_row_kept_too_long_reads_as_nan() -> None:
    engine = Toy()
    sequence = engine.open()
    (rows,) = engine.step([Work(sequence, (65,))])
    engine.truncate(sequence, 0)
    assert np.isnan(rows).all()


def test_a_failed_call_ends_the_lease_and_no_row_may_be_wanted() -> None:
    engine = Toy()
    sequence = engine.open()
    (rows,) = engine.step([Work(sequence, (65, 66))])
    with pytest.raises(InvalidValue):
        engine.step([Work(sequence, ())])
    assert rows.lease is not None
    assert rows.lease.ended
    assert engine.step([Work(sequence, (67,), 0)])[0].shape == (0, 261)
    assert sequence.tokens == [65, 66, 67]


def test_load_takes_context_and_sequences() -> None:
    loaded = load_engine("toy", LoadOptions(context=16, sequences=1))
    assert (loaded.name, loaded.engine.limits.context) == ("toy", 16)
    loaded.engine.open()
    with pytest.raises(EngineFull, match="all 1 sequences"):
        loaded.engine.open()
    loaded.release()
    loaded.engine.open()


@pytest.mark.parametrize("options", [LoadOptions(context=0), LoadOptions(sequences=0)])
def test_a_load_option_out_of_range_is_an_error(options: LoadOptions) -> None:
    with pytest.raises(InvalidValue, match="must be an integer >= 1, got 0"):
        load_engine("toy", options)
