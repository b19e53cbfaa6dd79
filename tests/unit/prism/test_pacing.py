"""What a memory needs next, and how much a step reads."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prism import pacing
from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.memory import PrismMemory
from service.domain.prism.pacing import Need, SizedChunk, StepBounds, Wish
from service.domain.prism.spec import MEMORY_TOKENS, Encoding, PrismSpec
from service.domain.prompting.cutting import split
from service.domain.prompting.tokens import estimate_tokens
from service.domain.values.paths import Path
from tests.unit.support.logged import logged_chunk

SPEC = PrismSpec(schema_source="class N:\n    topics: dict[str, str]\n", fold_tokens=1_000_000)
NOTHING = Wish(applied_position=9, consolidate_position=None, consolidated_tokens=0)


def memory(*sizes: int, encoding: Encoding = Encoding.AMENDMENTS) -> PrismMemory:
    """Returns a memory of one topic that was given a text of each size, one after the other."""
    made = PrismMemory.create(SPEC.schema(), encoding)
    for number, size in enumerate(sizes, start=1):
        value = f"{number}" * size
        one = Amendment(path=Path(("topics", "a")), op=Op.UPDATE, value=value)
        made = made.apply(number, [one])
    return made


def bounds(window: int) -> StepBounds:
    return StepBounds(
        window_tokens=window,
        task_tokens=100,
        step_output_tokens=500,
        consolidation_output_tokens=800,
    )


def need(held: PrismMemory, window: int, wish: Wish = NOTHING, spec: PrismSpec = SPEC) -> Need:
    return pacing.next_need(spec, held, bounds(window), wish)


def test_a_small_memory_goes_on() -> None:
    assert need(memory(100), 10_000) is Need.STEP
    assert need(memory(), 10_000) is Need.STEP


def test_amendments_are_folded_by_size() -> None:
    held = memory(4000)
    assert need(held, 100_000, spec=replace(SPEC, fold_tokens=500)) is Need.FOLD
    assert need(held.fold(), 100_000, spec=replace(SPEC, fold_tokens=500)) is Need.STEP


def test_before_the_budget_is_passed_by_what_is_dead_it_is_folded() -> None:
    held = memory(4000, 4000, 4000)
    spec = replace(SPEC, memory_tokens=2000)
    assert need(held, 100_000, spec=spec) is Need.FOLD
    assert need(held.fold(), 100_000, spec=spec) is Need.STEP


def test_past_its_budget_a_memory_is_consolidated_until_that_no_longer_helps() -> None:
    held = memory(12_000).fold()
    spec = replace(SPEC, memory_tokens=2000)
    assert need(held, 100_000, spec=spec) is Need.CONSOLIDATION
    tried = replace(NOTHING, consolidated_tokens=held.live_tokens)
    assert need(held, 100_000, tried, spec) is Need.STEP
    grown = memory(14_000).fold()
    assert need(grown, 100_000, tried, spec) is Need.CONSOLIDATION


def test_without_a_budget_half_of_the_window_counts() -> None:
    held = memory(12_000).fold()
    assert need(held, 10_000) is Need.STEP
    assert need(held, 5_000) is Need.CONSOLIDATION


def test_a_wish_waits_for_its_position() -> None:
    early = replace(NOTHING, consolidate_position=10)
    assert need(memory(10), 10_000, early) is Need.STEP
    assert need(memory(10), 10_000, replace(early, applied_position=10)) is Need.CONSOLIDATION


def test_where_nothing_helps_there_is_no_room() -> None:
    held = memory(8000).fold()
    spec = replace(SPEC, memory_tokens=100_000)
    assert need(held, 2400, spec=spec) is Need.CONSOLIDATION
    tried = replace(NOTHING, consolidated_tokens=held.live_tokens)
    assert need(held, 2400, tried, spec) is Need.ROOM
    assert need(memory(8000), 2400, tried, spec) is Need.FOLD


def test_in_place_nothing_is_folded() -> None:
    held = memory(4000, 4000, encoding=Encoding.IN_PLACE)
    assert held.shown_tokens == held.live_tokens
    assert held.fold() is held
    assert need(held, 100_000, spec=replace(SPEC, fold_tokens=1)) is Need.STEP
    (only,) = held.segments()
    assert only.text == f"[MEMORY]\n{held.value_json}\n"


def test_groups_shrink_with_the_room() -> None:
    held = memory(8000)
    assert pacing.group_tokens(SPEC, held, bounds(100_000)) == SPEC.chunk_tokens
    room = pacing.room_tokens(SPEC, held, bounds(4000))
    assert 0 < room < SPEC.chunk_tokens
    assert pacing.group_tokens(SPEC, held, bounds(4000)) == room
    small = replace(SPEC, chunk_tokens=1)
    assert pacing.group_tokens(small, held, bounds(4000)) == 1
    assert pacing.piece_tokens(small, held, bounds(100_000)) == pacing.MIN_CHUNK_TOKENS


def sized(text: str, position: int = 1) -> SizedChunk:
    logged = logged_chunk(position, Chunk(kind=ChunkKind.MESSAGE, role="user", text=text))
    return SizedChunk.of(logged, estimate_tokens)


@pytest.mark.parametrize(
    ("limit", "count", "full"), [(1, 1, True), (43, 1, True), (86, 2, True), (10_000, 5, False)]
)
def test_chunks_are_taken_together_up_to_the_limit_and_at_least_one(
    limit: int, count: int, full: bool
) -> None:
    chunks = [sized("x" * 160, n) for n in range(1, 6)]
    group, is_full = pacing.read_group(chunks, limit)
    assert (len(group), is_full) == (count, full)


def test_a_large_chunk_is_read_in_pieces_and_a_group_at_once() -> None:
    large = sized("A sentence of some words. " * 100)
    pieces = pacing.parts([large], 100, estimate_tokens)
    assert len(pieces) > 5
    assert {part[0].position for part in pieces} == {1}
    text = "".join(part[0].chunk.as_text() for part in pieces)
    assert text == large.logged.chunk.as_text()
    small = [sized("a"), sized("b", 2)]
    (whole,) = pacing.parts(small, 1, estimate_tokens)
    assert [one.position for one in whole] == [1, 2]


@given(st.text(max_size=2000), st.integers(1, 300))
def test_pieces_are_the_text_and_each_fits(text: str, limit: int) -> None:
    pieces = split(text, limit, estimate_tokens)
    assert "".join(pieces) == text
    assert all(pieces)
    assert all(estimate_tokens(piece) <= limit or len(piece) == 1 for piece in pieces)


def test_pieces_end_where_a_reader_would_pause() -> None:
    paragraphs = "One thing. Another thing.\n\n" * 8
    assert all(piece.endswith("\n\n") for piece in split(paragraphs, 30, estimate_tokens))
    sentences = "One thing, and one more. " * 20
    assert all(piece.rstrip().endswith(".") for piece in split(sentences, 30, estimate_tokens))
    assert split("word " * 50, 10, estimate_tokens)[0].endswith(" ")
    assert len(split("x" * 400, 10, estimate_tokens)) == 10


def test_a_budget_leaves_room_for_the_consolidation() -> None:
    assert pacing.budget_tokens(replace(SPEC, memory_tokens=3000), memory(), bounds(10_000)) == 3000
    most = 10_000 - 100 - 800 - pacing.MARGIN_TOKENS
    assert (
        pacing.budget_tokens(replace(SPEC, memory_tokens=50_000), memory(), bounds(10_000)) == most
    )
    assert pacing.budget_tokens(SPEC, memory(), bounds(10_000)) == 5000
    assert pacing.budget_tokens(SPEC, memory(), bounds(500)) == 0


@pytest.mark.parametrize("window", [3000, 8192, 11_000, 32_768, 1_000_000])
def test_the_default_is_at_most_about_half_of_a_small_window(window: int) -> None:
    tight = StepBounds.of(window, 1100, 1024 * 1024)
    budget = pacing.budget_tokens(replace(SPEC, memory_tokens=MEMORY_TOKENS), memory(), tight)
    assert budget <= min(MEMORY_TOKENS, 0.55 * window)
    assert budget == MEMORY_TOKENS or window < 2 * MEMORY_TOKENS


def test_half_of_the_bytes_are_a_budget_as_well() -> None:
    held = memory(6000).fold()
    tight = replace(bounds(1_000_000), max_memory_bytes=8000)
    assert 0.4 * held.live_tokens < pacing.budget_tokens(SPEC, held, tight) < held.live_tokens
    assert pacing.next_need(SPEC, held, tight, NOTHING) is Need.CONSOLIDATION
    tried = replace(NOTHING, consolidated_tokens=held.live_tokens)
    assert pacing.next_need(SPEC, held, tight, tried) is Need.STEP
    roomy = replace(tight, max_memory_bytes=2 * held.live_bytes)
    assert pacing.next_need(SPEC, held, roomy, NOTHING) is Need.STEP


def test_a_memory_without_room_is_consolidated_again_once_it_has_grown() -> None:
    held = memory(6000)
    assert pacing.may_make_room(held, 0)
    assert not pacing.may_make_room(held, held.live_tokens)
    assert pacing.may_make_room(memory(6300), held.live_tokens)
    crowded = replace(NOTHING, crowded=True)
    assert need(held, 1_000_000, crowded) is Need.CONSOLIDATION


def test_replies_take_a_part_of_a_small_window() -> None:
    small, large = StepBounds.of(8000, 500, 2**20), StepBounds.of(128_000, 500, 2**20)
    assert (small.step_output_tokens, small.consolidation_output_tokens) == (2000, 2666)
    assert (large.step_output_tokens, large.consolidation_output_tokens) == (4096, 8192)
    assert pacing.room_tokens(SPEC, memory(), small) > 5000
