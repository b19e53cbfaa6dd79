"""The log as browsing reads it, on a real database."""

import asyncio
import tracemalloc

import pytest

from service.domain.answers.browse.pieces import ChunkPart, RankPieces, ReadPiece, Span
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prompting.flows import Fetch
from service.usecases.answers.readers import log_range
from service.usecases.answers.readers.browsed_log import BrowsedLog, BrowseHit
from storage.engine.database import Database
from tests.integration.support.browse import held, pack, write
from tests.integration.support.ranks import Ranked

TEXTS = ("aaaa", "bb", "cccccccccc", "d")
#: Of these tests no log has more.
MOST = 1 << 24


async def opened(
    database: Database, ranks: Ranked | None = None, *, up_to: int = 4, characters: int = 5
) -> BrowsedLog:
    return await BrowsedLog.open(
        held(database, up_to), pack(characters), ranks or Ranked(), max_bytes=MOST
    )


async def texts_of(log: BrowsedLog) -> list[list[ChunkPart]]:
    return [list((await log.fetch(ReadPiece(number=one.number))).parts) for one in log.frames]


async def ranked(log: BrowsedLog, ask: RankPieces) -> tuple[int, ...]:
    """Returns the numbers of the pieces that fit."""
    return tuple(frame.number for frame in await log.fetch(ask))


def part(position: int, text: str, at: int = 0) -> ChunkPart:
    return ChunkPart(position=position, from_character=at, text=text)


async def test_pieces_have_the_log_and_nothing_twice(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(database, TEXTS)
    expected = [
        [part(1, "aaaa"), part(2, "b")],
        [part(2, "b", 1), part(3, "cccc")],
        [part(3, "ccccc", 4)],
        [part(3, "c", 9), part(4, "d")],
    ]
    assert await texts_of(await opened(database)) == expected
    # Read chunk by chunk, and in pages that end before a piece does, it is the same.
    for chunks, size in ((1, 1 << 20), (512, 4)):
        monkeypatch.setattr(log_range, "PAGE_CHUNKS", chunks)
        monkeypatch.setattr(log_range, "PAGE_BYTES", size)
        assert await texts_of(await opened(database)) == expected


async def test_what_came_after_the_question_is_not_read(database: Database) -> None:
    await write(database, TEXTS)
    assert await texts_of(await opened(database, up_to=2)) == [
        [part(1, "aaaa"), part(2, "b")],
        [part(2, "b", 1)],
    ]
    assert (await opened(database, up_to=0)).frames == ()


async def test_messages_and_steps_are_read_as_text(database: Database) -> None:
    said = Chunk(kind=ChunkKind.MESSAGE, role="user", text="hi")
    did = Chunk(kind=ChunkKind.STEP, observation="a door", action="open it")
    await write(database, [said, did])
    (parts,) = await texts_of(await opened(database, up_to=2, characters=100))
    assert [one.text for one in parts] == ["user: hi", "Action: open it\nObservation: a door"]


async def test_the_best_chunk_speaks_for_its_piece(database: Database) -> None:
    await write(database, TEXTS)
    hits = [
        BrowseHit(position=p, from_character=c) for p, c in ((3, 9), (2, 1), (4, 0), (3, 0), (1, 0))
    ]
    ranks = Ranked(hits)
    log = await opened(database, ranks)
    assert await ranked(log, RankPieces(query="q", count=2)) == (4, 2)
    assert await ranked(log, RankPieces(query="q", count=3)) == (4, 2, 1)
    # The second is found among the first two hits, the third only among twice as many.
    assert [limit for _, limit, _ in ranks.asked] == [2, 3, 6]
    assert await ranked(log, RankPieces(query="q", count=9)) == (4, 2, 1)
    assert await ranked(log, RankPieces(query="q", count=1, rerank=True)) == (1,)
    assert ranks.asked[-2:] == [("q", 1, False), ("q", 1, True)]


async def test_of_a_chunk_that_fits_as_a_whole_the_piece_with_the_words_is_named(
    database: Database,
) -> None:
    long = "a hill. " * 20 + "the key! " + "a hill. " * 20 + "key, key!" + "a hill. " * 20
    await write(database, ["a dog. " * 10, long, "one key?"])
    whole = [BrowseHit(position=position, from_character=None) for position in (2, 3)]
    log = await opened(database, Ranked(whole), up_to=3, characters=70)
    once, twice = long.index("the key"), long.index("key, key")
    assert log.frame_of(2, once).number not in (2, log.frame_of(2, twice).number)
    best = [log.frame_of(*one).number for one in ((2, twice), (3, 0), (2, once))]
    for count in (1, 2, 3, 4):
        asked = RankPieces(query="Which key?", count=count)
        assert await ranked(log, asked) == tuple(best[:count])
    # What retrieval found by other forms of its words, this does not see.
    assert await ranked(log, RankPieces(query="opened", count=1)) == (2,)


async def test_nothing_that_fits_is_no_piece(database: Database) -> None:
    await write(database, TEXTS)
    ranks = Ranked()
    log = await opened(database, ranks)
    assert await ranked(log, RankPieces(query="q", count=2, rerank=True)) == ()
    assert [rerank for *_, rerank in ranks.asked] == [False], "there is nothing to order"


async def test_pieces_that_are_read_at_once_take_one_connection(
    database: Database, url: str
) -> None:
    await write(database, TEXTS)
    other = Database.connect(url, pool_size=5, name="browsing")
    try:
        log = await opened(other)
        await asyncio.gather(*(log.fetch(ReadPiece(number=one.number)) for one in log.frames))
        # A pool opens one more where none is free.
        assert other.connections()["core"] == {"used": 0, "idle": 1}
    finally:
        await other.close()


async def test_what_was_ranked_before_stays_so(database: Database) -> None:
    await write(database, TEXTS)
    ranks = Ranked([BrowseHit(position=4, from_character=0)])
    log = await BrowsedLog.open(
        held(database, 4), pack(5), ranks, ranked=[(3, 1, 9), ()], max_bytes=MOST
    )
    ask = RankPieces(query="q", count=2)
    assert [await ranked(log, ask) for _ in range(3)] == [(3, 1), (), (4,)]
    assert len(ranks.asked) == 1


async def test_a_place_belongs_to_one_piece(database: Database) -> None:
    await write(database, TEXTS)
    log = await opened(database)
    places = [(1, 0), (1, 3), (2, 0), (2, 1), (3, 3), (3, 4), (3, 9), (4, 0), (3, 99), (4, 99)]
    assert [log.frame_of(*one).number for one in places] == [1, 1, 1, 2, 2, 3, 4, 4, 4, 4]
    whole = await opened(database, characters=6)
    assert whole.frame_of(2, 99).number == 1, "the next piece begins with the next chunk"


async def test_only_what_the_log_says_is_a_true_span(database: Database) -> None:
    await write(database, ("The cat.", "A mouse."))
    log = await opened(database, up_to=2)

    def span(position: int, at: int, text: str) -> Span:
        end = at + len(text)
        return Span(position=position, from_character=at, to_character=end, text=text)

    good = [span(2, 2, "mouse"), span(1, 4, "cat")]
    bad = [span(1, 4, "dog"), span(1, 3, "cat"), span(2, 0, ""), span(9, 0, "cat")]
    assert await log.true_spans([bad[0], good[0], *bad[1:], good[1]]) == good


async def test_other_look_ups_are_refused(database: Database) -> None:
    await write(database, TEXTS)
    with pytest.raises(TypeError, match="Fetch"):
        await (await opened(database)).fetch(Fetch())


async def test_the_text_of_a_long_log_is_not_held(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(database, ["word " * 400] * 1024)
    monkeypatch.setattr(log_range, "PAGE_BYTES", 64 * 1024)
    # What a first look at a log leaves behind is none of its text.
    await opened(database, up_to=32, characters=10_000)
    tracemalloc.start()
    try:
        log = await opened(database, up_to=1024, characters=10_000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(log.frames) == 205
    # The log has 2 MB; a page is held as rows, as chunks and as texts.
    assert most < 12 * log_range.PAGE_BYTES
