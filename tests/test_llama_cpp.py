"""The llama.cpp engine: its contract, and every trap of llama-cpp-python that can be tested."""

from __future__ import annotations

import numpy as np
import pytest

from engine_contract import LAWS
from llama_fixture import STORY, engine, fresh_rows, load_smollm2, loaded, needs_model, rows_of
from nalar.engines.base import Work
from nalar.errors import EngineError, EngineFull, InvalidType, InvalidValue

pytestmark = needs_model
__all__ = ["engine", "loaded"]


@pytest.fixture(scope="module")
def story(loaded):
    """307 tokens: past the 256 cells at which a lone token takes another path."""
    return loaded.engine.vocabulary.encode(STORY * 18)


@pytest.fixture(scope="module")
def reference(loaded, story):
    """The last three rows after the story, from one step on an empty cache."""
    return fresh_rows(loaded.engine, story, rows=3)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_contract(engine, law):
    law(engine, 0.0)


class TestRows:
    def test_are_the_same_bits_however_the_text_is_cut(self, engine, story, reference):
        for chunks in [(1,), (63,), (64,)]:
            np.testing.assert_array_equal(fresh_rows(engine, story, 3, chunks), reference)

    def test_are_the_same_bits_with_two_threads(self, story, reference):
        loaded = load_smollm2(threads=2)
        for chunks in [(), (2, 61, 100)]:
            np.testing.assert_array_equal(fresh_rows(loaded.engine, story, 3, chunks), reference)
        loaded.release()

    def test_are_the_same_bits_beside_neighbours(self, engine, story, reference):
        one, two, three = engine.open(), engine.open(), engine.open()
        rows_of(engine, two, story[50:180], 1)
        half = len(story) // 2
        engine.step([Work(one, tuple(story[:half])), Work(two, tuple(story[:7])), Work(three, tuple(story[9:100]), 40)])
        rows = engine.step([Work(two, (5,)), Work(one, tuple(story[half:]), 3), Work(three, (7, 8, 9), 3)])[1]
        np.testing.assert_array_equal(rows, reference)

    def test_are_the_same_bits_after_a_longer_prompt_than_one_slice(self, engine, story):
        every = fresh_rows(engine, story[:130])  # three slices: the rows are gathered
        assert every.shape == (130, engine.vocabulary.size)
        sequence = engine.open()
        np.testing.assert_array_equal(rows_of(engine, sequence, story[:130], chunks=(50, 40)), every)

    def test_are_borrowed_without_a_copy_and_read_only(self, engine, story):
        one, two = engine.open(), engine.open()
        rows = engine.step([Work(one, tuple(story[:100]), 2), Work(two, (1, 2, 3), 3)])
        assert [row.shape for row in rows] == [(2, 49152), (3, 49152)]
        gap = rows[1].__array_interface__["data"][0] - rows[0].__array_interface__["data"][0]
        assert gap == rows[0].nbytes  # one block of llama.cpp's memory
        assert not rows[0].flags.writeable
        assert rows[0].dtype == np.float32

    def test_end_their_lease_at_the_next_call(self, engine, story):
        sequence = engine.open()
        other = engine.open()
        calls = [lambda: engine.step([Work(other, (7,))]), lambda: engine.truncate(sequence, 1), lambda: engine.fork(sequence),
                 lambda: engine.close(other), engine.open]
        for call in calls:
            rows = engine.step([Work(sequence, (5, 6))])[0]
            assert not rows[0].lease.ended
            call()
            assert rows.lease.ended
            assert rows[:1].lease.ended

    def test_outlive_a_forgotten_engine(self):
        loaded = load_smollm2(context=64, sequences=1)
        rows = loaded.engine.step([Work(loaded.engine.open(), (5, 6, 7))])[0]
        kept = np.array(rows)
        del loaded
        np.testing.assert_array_equal(rows, kept)

    def test_can_be_none(self, engine):
        sequence = engine.open()
        assert engine.step([Work(sequence, (5, 6), 0)])[0].shape == (0, engine.vocabulary.size)
        assert sequence.tokens == [5, 6]
        assert engine.step([]) == []


class TestSequences:
    def test_fork_then_diverge(self, engine, story):
        tokens, left, right = story[:90], [11, 12, 13], [900, 901]
        parent = engine.open()
        rows_of(engine, parent, tokens, 1)
        child = engine.fork(parent)
        used = engine.cells_used
        assert used == 90
        rows = engine.step([Work(child, tuple(right), 2), Work(parent, tuple(left), 3)])
        copies = [np.array(row) for row in rows]
        np.testing.assert_array_equal(copies[0], fresh_rows(engine, tokens + right, 2))
        np.testing.assert_array_equal(copies[1], fresh_rows(engine, tokens + left, 3))
        assert (parent.tokens, child.tokens) == (tokens + left, tokens + right)
        engine.close(parent)
        np.testing.assert_array_equal(rows_of(engine, child, [44, 45]), fresh_rows(engine, tokens + right + [44, 45], 2))

    def test_a_reused_slot_shows_nothing_of_its_last_tenant(self, engine, story):
        expected = fresh_rows(engine, story[:20], 2)
        canary = engine.open()
        rows_of(engine, canary, story[100:220], 1)
        slot = canary.slot
        engine.close(canary)
        again = engine.open()
        assert again.slot == slot
        np.testing.assert_array_equal(rows_of(engine, again, story[:20], 2), expected)
        engine.close(again)
        parent = engine.open()
        rows_of(engine, parent, story[:18], 1)
        assert engine.fork(parent).slot != parent.slot
        np.testing.assert_array_equal(rows_of(engine, parent, story[18:20]), expected)

    def test_truncate_and_decode_again_equals_teacher_forcing(self, engine, story, reference):
        sequence = engine.open()
        rows_of(engine, sequence, [*story[:-3], 7, 8, 9, 10, 11], 5)
        engine.truncate(sequence, len(story) - 3)
        assert sequence.tokens == story[:-3]
        assert engine.cells_used == len(story) - 3
        np.testing.assert_array_equal(rows_of(engine, sequence, story[-3:]), reference)
        engine.truncate(sequence, len(story))
        engine.truncate(sequence, 0)
        np.testing.assert_array_equal(rows_of(engine, sequence, story, 3), reference)

    @pytest.mark.parametrize("length", [-1, 4, 2.0, True])
    def test_truncate_refuses_a_length_it_does_not_have(self, engine, length):
        sequence = engine.open()
        engine.step([Work(sequence, (5, 6, 7))])
        with pytest.raises((ValueError, TypeError), match=r"length must be an integer in \[0, 3\]"):
            engine.truncate(sequence, length)

    def test_close_is_idempotent_and_a_closed_sequence_is_refused(self, engine):
        sequence = engine.open()
        engine.close(sequence)
        engine.close(sequence)
        for call in (lambda: engine.step([Work(sequence, (1,))]), lambda: engine.fork(sequence), lambda: engine.truncate(sequence, 0)):
            with pytest.raises(EngineError, match="closed"):
                call()

    def test_no_more_than_the_limit(self, engine):
        sequences = [engine.open() for _ in range(engine.limits.sequences)]
        with pytest.raises(EngineFull, match="all 8 sequences are open"):
            engine.open()
        with pytest.raises(EngineFull, match="all 8 sequences are open"):
            engine.fork(sequences[0])


class TestErrorsLeaveEverythingAsItWas:
    def test_a_broken_step(self, engine, story):
        one, two = engine.open(), engine.open()
        rows_of(engine, one, story[:30], 1)
        good = Work(two, (5, 6))
        size = engine.vocabulary.size
        for tokens, rows, text in [((), 0, "at least one token"), ((3, -1), 1, "got -1"),
                                   ((size,), 1, f"a token of work.1. must be an integer in .0, {size - 1}., got {size}"),
                                   ((5,), 2, r"rows must be an integer in \[0, 1\], got 2"), ((5,), -1, "got -1")]:
            with pytest.raises(InvalidValue, match=text):
                engine.step([good, Work(one, tokens, rows)])
        with pytest.raises(InvalidType, match="a token of"):
            engine.step([good, Work(one, (5.0,))])
        with pytest.raises(InvalidValue, match="each sequence once"):
            engine.step([good, good])
        assert (one.tokens, two.tokens) == (story[:30], [])
        np.testing.assert_array_equal(rows_of(engine, one, story[30:32]), fresh_rows(engine, story[:32], 2))

    def test_past_the_context_both_lengths_are_named(self, engine):
        sequence = engine.open()
        with pytest.raises(EngineError, match=r"1025 tokens \(0 held, 1025 new\) do not fit the context of 1024"):
            engine.step([Work(sequence, (5,) * 1025)])
        assert sequence.tokens == []

    def test_a_step_that_dies_between_slices(self, engine, story, reference, monkeypatch):
        one, two = engine.open(), engine.open()
        rows_of(engine, one, story[:100], 1)
        real, calls = engine._context.compute, []

        def compute(places):
            calls.append(len(places))
            if len(calls) == 3:
                raise KeyboardInterrupt
            real(places)

        monkeypatch.setattr(engine._context, "compute", compute)
        with pytest.raises(KeyboardInterrupt):
            engine.step([Work(one, tuple(story[100:])), Work(two, (4, 5))])
        monkeypatch.undo()
        assert (one.tokens, two.tokens, engine.cells_used) == (story[:100], [], 100)
        assert (engine._context.length(one.slot), engine._context.length(two.slot)) == (100, 0)
        np.testing.assert_array_equal(rows_of(engine, one, story[100:], 3), reference)

    def test_where_a_cut_is_refused_the_tokens_are_read_again(self, engine, story, reference, monkeypatch):
        """As on a recurrent model, whose state has no past."""
        sequence = engine.open()
        rows_of(engine, sequence, story[:100], 1)
        remove, compute, calls = engine._context.remove, engine._context.compute, []

        def broken(places):
            calls.append(compute(places))
            if len(calls) == 2:
                raise EngineError("as if the decoder failed")

        monkeypatch.setattr(engine._context, "remove", lambda slot, start=0: not start and remove(slot))
        monkeypatch.setattr(engine._context, "compute", broken)
        with pytest.raises(EngineError, match="as if"):
            engine.step([Work(sequence, tuple(story[100:]))])
        with pytest.raises(EngineError, match="cannot cut a sequence from 100 tokens back to 50"):
            engine.truncate(sequence, 50)
        monkeypatch.undo()
        assert sequence.tokens == story[:100]
        np.testing.assert_array_equal(rows_of(engine, sequence, story[100:], 3), reference)

    def test_llama_cpps_own_refusal_says_why(self, engine):
        from nalar.engines.slices import Place

        sequence = engine.open()
        engine.step([Work(sequence, (5, 6))])
        with pytest.raises(EngineError, match=r"its decoder returned -1: .*sequence"):
            engine._context.compute([Place(sequence.slot, 5, 7, True, False)])  # a gap: position 2 is next


class TestCache:
    def test_more_tokens_than_a_batch_do_not_abort_the_process(self, engine, story):
        sequence = engine.open()
        rows = engine.step([Work(sequence, tuple(story[:200]), 70)])[0]
        assert np.isfinite(rows).all()
        assert rows.shape == (70, 49152)

    def test_a_full_shared_cache_hurts_nobody(self, story):
        loaded = load_smollm2(context=256, sequences=3)
        engine = loaded.engine
        assert (engine.limits.context, engine.cells, engine.limits.step_tokens) == (256, 768, 768)
        engine._cache._cells.capacity = engine._cache.capacity = 256  # as if the three shared one context
        one, two = engine.open(), engine.open()
        rows_of(engine, one, story[:150], 1)
        twin = engine.fork(one)
        rows_of(engine, two, story[:100], 1)
        with pytest.raises(EngineFull, match="adds 7 tokens to 250 in a cache of 256"):
            engine.step([Work(one, (5,)), Work(two, tuple(story[100:106]))])
        assert (one.tokens, two.tokens) == (story[:150], story[:100])
        rows = rows_of(engine, two, story[100:106], 2)
        for sequence in (one, twin, two):
            engine.close(sequence)
        np.testing.assert_array_equal(rows, fresh_rows(engine, story[:106], 2))
        loaded.release()

    def test_a_small_context_is_kept_to_the_token_though_llama_cpp_rounds_up(self):
        loaded = load_smollm2(context=10, sequences=1)
        engine = loaded.engine
        assert (engine.limits.context, engine._context.cells) == (10, 256)
        sequence = engine.open()
        engine.step([Work(sequence, (5,) * 10)])
        with pytest.raises(EngineError, match=r"11 tokens \(10 held, 1 new\) do not fit the context of 10"):
            engine.step([Work(sequence, (5,))])
        loaded.release()


class TestReproducible:
    def test_a_lone_token_gives_the_row_of_a_larger_step(self, story, reference):
        loaded = load_smollm2(reproducible=True, threads=2)
        engine = loaded.engine
        sequence = engine.open()
        rows_of(engine, sequence, story[:-3], 1)
        alone = np.concatenate([rows_of(engine, sequence, [token]) for token in story[-3:]])
        np.testing.assert_array_equal(alone, reference)
        assert engine._context.length(engine._cache._company) == 0
        assert engine.cells_used == len(story)
        loaded.release()

    def test_a_neighbour_that_leaves_moves_no_row(self, story, reference):
        loaded = load_smollm2(reproducible=True, sequences=2)
        engine = loaded.engine
        first, second = engine.open(), engine.open()
        rows_of(engine, first, story[:50], 1)
        rows_of(engine, second, story[:100], 1)
        engine.truncate(first, 20)
        rows_of(engine, second, story[100:120], 1)
        engine.close(first)
        np.testing.assert_array_equal(rows_of(engine, second, story[120:], 3), reference)
        assert engine.cells_used == len(story)
        engine.close(second)
        assert engine._context.length(engine._cache._retired) == 0
        np.testing.assert_array_equal(fresh_rows(engine, story, 3), reference)
        loaded.release()

    def test_retired_cells_are_given_up_when_the_cache_is_full(self):
        loaded = load_smollm2(context=127, sequences=2, reproducible=True)
        engine = loaded.engine
        first, second = engine.open(), engine.open()
        rows_of(engine, first, (5,) * 127, 1)
        for _ in range(3):
            rows_of(engine, second, (6,) * 42, 1)
            engine.truncate(first, 40)
            rows_of(engine, first, (5,) * 87, 1)
        assert (len(first.tokens), len(second.tokens), engine.cells_used, engine.cells) == (127, 126, 253, 255)
        loaded.release()

    def test_the_last_cell_can_be_used(self):
        loaded = load_smollm2(context=256, sequences=1, reproducible=True)
        sequence = loaded.engine.open()
        loaded.engine.step([Work(sequence, (5,) * 255)])
        loaded.engine.step([Work(sequence, (5,))])
        loaded.release()
