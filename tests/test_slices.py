"""A step is cut so that no row depends on how: pure arithmetic, no model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nalar.engines.base import Sequence, Work
from nalar.engines.cells import Cells
from nalar.engines.slices import SLICE, cut, layout


@st.composite
def steps(draw):
    work = []
    for slot in range(draw(st.integers(1, 5))):
        tokens = tuple(range(draw(st.integers(1, 150))))
        held = draw(st.integers(0, 9))
        work.append(Work(Sequence(slot, [0] * held), tokens, draw(st.integers(0, len(tokens)))))
    return work


@given(steps())
def test_every_token_once_in_order_with_its_position(work):
    places = [place for part in cut(layout(work)) for place in part]
    for one in work:
        mine = [place for place in places if place.slot == one.sequence.slot]
        held = len(one.sequence.tokens)
        assert [(place.position, place.token) for place in mine] == [(held + index, token) for index, token in enumerate(one.tokens)]
        assert [place.wanted for place in mine] == [False] * (len(one.tokens) - one.rows) + [True] * one.rows


@given(steps())
def test_wanted_rows_come_in_the_order_of_the_work(work):
    wanted = [place.slot for part in cut(layout(work)) for place in part if place.wanted]
    assert wanted == [one.sequence.slot for one in work for _ in range(one.rows)]


@given(steps())
def test_no_slice_is_too_large_or_a_lone_token(work):
    sizes = [len(part) for part in cut(layout(work))]
    assert max(sizes) <= SLICE
    assert min(sizes) > 1 or sum(sizes) == 1


@given(steps())
def test_the_last_two_tokens_of_a_work_share_a_slice(work):
    parts = list(cut(layout(work)))
    for one in work:
        where = [index for index, part in enumerate(parts) for place in part if place.slot == one.sequence.slot]
        assert where[-2:] in ([where[-1]], [where[-1]] * 2)


def test_one_prompt_and_a_few_decodes_have_all_their_rows_in_the_last_slice():
    work = [Work(Sequence(0), tuple(range(200))), Work(Sequence(1, [1, 2]), (3,)), Work(Sequence(2, [1]), (4, 5, 6), 3)]
    parts = list(cut(layout(work)))
    assert [sum(place.wanted for place in part) for part in parts] == [0, 0, 0, 5]


@given(st.lists(st.tuples(st.sampled_from(["take", "share", "keep"]), st.integers(0, 3), st.integers(0, 3), st.integers(0, 20))))
def test_cells_are_counted_as_sets_would_count_them(actions):
    cells, held, made = Cells(1000), {slot: [] for slot in range(4)}, 0
    for action, slot, other, amount in actions:
        if action == "take":
            cells.take(slot, amount)
            held[slot] = held[slot] + list(range(made, made + amount))
            made += amount
        elif action == "share":
            cells.share(slot, other)
            held[other] = list(held[slot])
        else:
            cells.keep(slot, amount)
            held[slot] = held[slot][:amount]
        used = len({cell for own in held.values() for cell in own})
        assert cells.used() == used
        assert [cells.fit(size) for size in (1000 - used, 1001 - used)] == [True, False]
