"""Segments: the same for the same log, however it came, and every character in one of them."""

import tracemalloc
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from service.domain.log.chunks import Chunk, ChunkKind, LoggedChunk
from service.domain.prompting.tokens import estimate_tokens
from service.domain.tree.borders import SegmentPiece
from service.domain.tree.nodes import TextOffset
from service.domain.tree.segmenting import Cut, Segmenter, joined, piece_of
from service.llm.splitter import first_piece
from tests.unit.support.logged import logged_chunk

START = TextOffset(1)
WORDS = [
    "a ",
    "word ",
    "Ende. ",
    "市場。",
    "\n",
    "\n\n",
    "👩‍👧 ",
    "x" * 30,
    "sentence that is here. ",
]
#: At the end of a chunk it ends a line.
DONE = "Done."


def chunk(position: int, kind: ChunkKind, text: str) -> LoggedChunk:
    made = {
        ChunkKind.TEXT: Chunk(kind=kind, text=text),
        ChunkKind.MESSAGE: Chunk(kind=kind, role="user", text=text),
        ChunkKind.STEP: Chunk(kind=kind, thought="I think", action=text),
    }
    return logged_chunk(position, made[kind])


@st.composite
def logs(
    draw: st.DrawFn,
    kinds: Sequence[ChunkKind] = tuple(ChunkKind),
    words: Sequence[str] = (*WORDS, DONE),
) -> list[LoggedChunk]:
    texts = st.lists(st.sampled_from(words), min_size=1, max_size=40).map("".join)
    held = draw(st.lists(st.tuples(st.sampled_from(kinds), texts), max_size=25))
    return [chunk(number, kind, text) for number, (kind, text) in enumerate(held, 1)]


def messages(*texts: str) -> list[LoggedChunk]:
    return [chunk(number, ChunkKind.MESSAGE, text) for number, text in enumerate(texts, 1)]


def texts(*texts: str) -> list[LoggedChunk]:
    return [chunk(number, ChunkKind.TEXT, text) for number, text in enumerate(texts, 1)]


def cut_up(log: Sequence[LoggedChunk], segment_tokens: int) -> list[Cut]:
    segmenter = Segmenter(segment_tokens, first_piece, START)
    return [*segmenter.feed(map(piece_of, log)), *segmenter.finish()]


def said(log: Sequence[LoggedChunk], start: TextOffset, end: TextOffset) -> list[SegmentPiece]:
    """Returns the pieces of a log between two places, read from the log itself."""
    found = []
    for logged in log[start.position - 1 : end.last_position]:
        piece = piece_of(logged, start.offset if logged.position == start.position else 0)
        if logged.position == end.position:
            text = logged.chunk.as_text()[piece.offset : end.offset]
            piece = SegmentPiece(
                position=piece.position, offset=piece.offset, text=text, whole=piece.whole
            )
        found.append(piece)
    return found


TOKENS = st.integers(16, 200)


@given(log=logs(), tokens=TOKENS)
def test_every_character_is_in_one_segment_that_is_not_too_long(
    log: list[LoggedChunk], tokens: int
) -> None:
    cuts = cut_up(log, tokens)
    places = [START, *(cut.end for cut in cuts)]
    assert [cut.start for cut in cuts] == places[:-1]
    assert places[-1] == TextOffset(len(log) + 1)
    for cut in cuts:
        assert cut.start < cut.end
        assert cut.text == joined(said(log, cut.start, cut.end))
        assert cut.tokens == estimate_tokens(cut.text) <= tokens


@given(log=logs(), tokens=TOKENS, data=st.data())
def test_a_log_is_cut_alike_however_it_comes(
    log: list[LoggedChunk], tokens: int, data: st.DataObject
) -> None:
    at_once = cut_up(log, tokens)
    segmenter = Segmenter(tokens, first_piece, START)
    by_and_by: list[Cut] = []
    left = log
    while left:
        size = data.draw(st.integers(1, len(left)))
        by_and_by += segmenter.feed(map(piece_of, left[:size]))
        left = left[size:]
        if data.draw(st.booleans()) and left:
            # Another worker goes on from the place where the tail begins.
            begin = segmenter.start
            segmenter = Segmenter(tokens, first_piece, begin)
            tail = log[begin.position - 1 : len(log) - len(left)]
            offsets = [begin.offset] + [0] * len(tail)
            again = [piece_of(one, at) for one, at in zip(tail, offsets, strict=False)]
            assert segmenter.feed(again) == []
    assert [*by_and_by, *segmenter.finish()] == at_once


@given(log=logs(kinds=[ChunkKind.TEXT], words=WORDS), tokens=TOKENS, size=st.integers(1, 90))
def test_where_the_chunks_of_a_text_end_does_not_matter(
    log: list[LoggedChunk], tokens: int, size: int
) -> None:
    text = "".join(one.chunk.text for one in log)
    other = texts(*(text[at : at + size] for at in range(0, len(text), size)))
    assert [cut.text for cut in cut_up(log, tokens)] == [cut.text for cut in cut_up(other, tokens)]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (("The boat left.", "Jonas rowed."), "The boat left.\nJonas rowed."),
        (("“Go!”", "«Where?»", "(South.)", "2 days."), "“Go!”\n«Where?»\n(South.)\n2 days."),
        (("The boat left. ", "Jonas", " rowed"), "The boat left. Jonas rowed"),
        (("The har", "bour is at www.", "harbour.example; it costs 3.", "50."), None),
        (("港は静かだ。", "船が出た。"), None),
    ],
)
def test_texts_that_end_with_a_sentence_do_not_run_together(
    said: tuple[str, ...], shown: str | None
) -> None:
    (cut,) = cut_up(texts(*said), 100)
    assert cut.text == (shown or "".join(said))


@given(log=logs(kinds=[ChunkKind.MESSAGE, ChunkKind.STEP]), tokens=TOKENS)
def test_messages_and_steps_that_fit_are_kept_whole(log: list[LoggedChunk], tokens: int) -> None:
    cuts = cut_up(log, tokens)
    for cut in cuts:
        if cut.end.offset:
            assert estimate_tokens(log[cut.end.position - 1].chunk.as_text()) > tokens


@given(log=logs(), tokens=TOKENS)
def test_the_look_ahead_is_bounded(log: list[LoggedChunk], tokens: int) -> None:
    segmenter = Segmenter(tokens, first_piece, START)
    for logged in log:
        segmenter.feed([piece_of(logged)])
        tail = said(log, segmenter.start, TextOffset(logged.position + 1))
        assert sum(len(piece.text.encode()) for piece in tail) < 1.5 * 4 * tokens


@given(log=logs(kinds=[ChunkKind.TEXT]), tokens=st.integers(32, 200))
def test_what_is_left_at_the_end_of_a_text_is_no_small_segment(
    log: list[LoggedChunk], tokens: int
) -> None:
    text = "".join(one.chunk.text for one in log)
    # Of words that are as long as that there may be no better border.
    assume(all(len(word.encode()) < tokens for word in text.split()))
    cuts = cut_up(log, tokens)
    if len(cuts) > 1:
        assert cuts[-1].tokens >= tokens / 4


def test_the_last_two_segments_of_a_text_are_about_equal() -> None:
    cuts = cut_up(texts("A sentence that is here. " * 60), 300)
    assert [cut.tokens for cut in cuts] == [194, 182]
    cuts = cut_up(messages(*["I said this before, and say it again."] * 30), 300)
    assert [cut.tokens for cut in cuts] == [165, 165]


def test_a_turn_larger_than_a_segment_is_cut_at_its_sentences() -> None:
    long = "A sentence that is here. " * 100
    log = messages("Hello.", long, "And you?")
    cuts = cut_up(log, 200)
    assert cuts[0].text.startswith("user: Hello.\nuser: A sentence that is here. ")
    assert all(cut.text.endswith("here. ") for cut in cuts[:-1])
    assert all(one.end == other.start for one, other in pairwise(cuts))
    assert cuts[1].text.startswith("A sentence")
    assert cuts[1].start.position == 2
    assert cuts[-1].text.endswith("here. \nuser: And you?")


def test_a_message_that_does_not_fit_any_more_begins_the_next_segment() -> None:
    log = messages("a" * 360, "b" * 300, "c" * 360, "d" * 100)
    cuts = cut_up(log, 100)
    assert [cut.end for cut in cuts] == [TextOffset(2), TextOffset(3), TextOffset(4), TextOffset(5)]


def test_a_text_after_messages_begins_on_a_line_of_its_own_and_goes_on_as_written() -> None:
    log = [
        *messages("One."),
        chunk(2, ChunkKind.TEXT, "Half a wo"),
        chunk(3, ChunkKind.TEXT, "rd."),
        chunk(4, ChunkKind.STEP, "stop"),
    ]
    (cut,) = cut_up(log, 64)
    assert cut.text == "user: One.\nHalf a word.\nThought: I think\nAction: stop"
    assert (cut.start, cut.end) == (TextOffset(1), TextOffset(5))


def test_no_text_is_no_segment() -> None:
    assert cut_up([], 64) == []
    assert cut_up(texts("", ""), 64) == []


def test_a_piece_that_does_not_follow_is_refused() -> None:
    segmenter = Segmenter(64, first_piece, TextOffset(3, 5))
    with pytest.raises(ValueError, match="position 3, offset 0, where the text goes on"):
        segmenter.feed([piece_of(chunk(3, ChunkKind.TEXT, "0123456789"))])
    segmenter.feed([piece_of(chunk(3, ChunkKind.TEXT, "0123456789"), 5)])
    with pytest.raises(ValueError, match="where the text goes on at position 4"):
        segmenter.feed([piece_of(chunk(5, ChunkKind.TEXT, "later"))])
    (cut,) = segmenter.finish()
    assert (cut.start, cut.end, cut.text) == (TextOffset(3, 5), TextOffset(4), "56789")
    assert segmenter.start == TextOffset(4)


def test_a_large_chunk_and_many_small_ones_cost_no_more_memory_than_they_have() -> None:
    large = texts("A sentence that is here. " * 10_000)
    many = messages(*["A line that somebody wrote."] * 10_000)
    for log in (large, many):
        pieces = [piece_of(one) for one in log]
        segmenter = Segmenter(1000, lambda text, tokens: 4 * tokens, START)
        tracemalloc.start()
        made = sum(len(segmenter.feed([piece])) for piece in pieces)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert made > 50
        # The segments of the one large chunk, which come together, and little besides.
        assert peak < 600_000
