"""Questions to sessions that are longer than a reader may hold."""

import threading
from collections.abc import Iterable
from typing import Any

import pytest

from service.domain.answers.browse.pieces import Frame, RankPieces, ReadPiece
from service.domain.answers.browse.spec import BrowseOption
from service.domain.answers.navigation_request import NavigationRequest
from service.domain.tree.nodes import TextOffset
from service.domain.tree.segmenting import Segmenter
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem
from service.rpc.convert.answers import AnswerMessages
from service.settings.config import Config, Limits
from service.usecases.answers.ask import AskDone, occasion
from service.usecases.answers.readers import log_range
from service.usecases.answers.readers.browsed_log import BrowsedLog, BrowseHit
from service.usecases.answers.readers.tails import read_tail
from service.usecases.answers.trajectories import TrainingExample
from storage.answers.answers import StoredAnswer
from storage.calls import calls
from storage.engine.database import Database
from storage.log import ends
from storage.log.ranges import Range
from tests.integration.answers.test_trajectory_reading import trajectories
from tests.integration.support.asked import WINDOW, Words, ask_log
from tests.integration.support.browse import KEY, held, pack, write
from tests.integration.support.compressed_rows import STATE, make_state
from tests.integration.support.ranks import Ranked
from tests.integration.support.scripted import (
    CONFIG,
    ITEM,
    MEMORY,
    TREE,
    Script,
    answerer,
    make,
    tree_method,
)
from tests.integration.support.scripted import read as stored_memory
from tests.integration.support.statements import Statement, statements
from tests.integration.support.stored_answers import read_answer, store_question
from tests.integration.tree.test_navigate import Moves
from tests.support.gateways import gateway

#: What a chunk of 100 bytes counts as.
COUNTED = 100 + ends.CHUNK_BYTES
NOTES = [f"Note {number:>2}: " + "so it went on, and " * 4 + "." * 15 for number in range(1, 41)]


def test_the_notes_are_of_one_size() -> None:
    assert {len(note) for note in NOTES} == {100}


def bounded(**limits: int) -> Config:
    return CONFIG.model_copy(update={"limits": Limits(**limits)})


def positions_read(sent: Iterable[Statement]) -> list[tuple[int, int]]:
    """Returns the ranges whose chunks were asked for."""
    asked = [one.values for one in sent if "AS r (after, upto)" in one and "chunk c" in one]
    return [range_ for one in asked for range_ in zip(one["after"], one["upto"], strict=True)]


def after(position: int) -> Range:
    return Range(from_position=position + 1, to_position=40)


@pytest.mark.parametrize("most", [1, COUNTED, 3 * COUNTED - 1, 3 * COUNTED, 40 * COUNTED])
async def test_the_ends_of_a_log_have_so_many_bytes(database: Database, most: int) -> None:
    await write(database, NOTES)
    fit = max(most // COUNTED, 1)
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await ends.first(tx, KEY, after(0), most) == fit
        assert await ends.newest(tx, KEY, after(0), most) == 40 - fit
        assert await ends.first(tx, KEY, after(38), most) == min(38 + fit, 40)
        assert await ends.newest(tx, KEY, after(38), most) == max(40 - fit, 38)
        # Of an empty range there is neither.
        assert await ends.newest(tx, KEY, after(40), most) == 40
        assert await ends.newest(tx, KEY, Range(from_position=1, to_position=0), most) == 0


async def test_the_ends_are_found_without_a_look_at_the_rest(database: Database) -> None:
    await write(database, NOTES)
    with statements() as sent:
        async with database.transaction(DEFAULT_TENANT) as tx:
            await ends.newest(tx, KEY, after(0), 5 * ends.CHUNK_BYTES)
            await ends.first(tx, KEY, after(0), 5 * ends.CHUNK_BYTES)
    looks = [one.values for one in sent if "chunk c" in one]
    # No seven chunks can have fewer bytes, whatever is in them.
    assert [one["most"] for one in looks] == [7, 7]


async def navigated(
    database: Database, item: WorkItem, words: str, config: Config
) -> tuple[StoredAnswer, Moves]:
    moves = Moves(words, answer="It went on.")
    await answerer(database, gateway(Script(reply=moves), database), config).make(item)
    stored = await read_answer(database, item)
    assert stored.status == "complete", stored.failure
    return stored, moves


async def ask_state(database: Database, up_to: int, revision: int = 0) -> WorkItem:
    return await store_question(
        database,
        STATE,
        "What of it?",
        revision=revision,
        applied_position=up_to,
        navigation=NavigationRequest(max_calls=50),
    )


async def test_a_navigation_has_the_newest_of_a_tail_that_is_too_long(database: Database) -> None:
    rows = await make_state(database, NOTES)
    await rows.compress("So it began.", 2)
    config = bounded(max_tail_bytes=5 * COUNTED)
    with statements() as sent:
        item = await ask_state(database, 40, revision=1)
        stored, _ = await navigated(database, item, "Note 38", config)
    assert stored.text == "It went on."
    assert {one.position > 35 for one in stored.citations} == {True}
    # Two are under the vector; of the rest no text was read but of the newest.
    assert stored.left_out == (3, 35)
    assert all(after in (0, 35) or after > 35 for after, _ in positions_read(sent))
    item = await ask_state(database, 40, revision=1)
    stored, _ = await navigated(database, item, "Note 20", config)
    assert (stored.text, stored.left_out) == ("", (3, 35))
    # As long as all of it fits nothing is left out.
    item = await ask_state(database, 40, revision=1)
    stored, _ = await navigated(database, item, "Note 20", bounded(max_tail_bytes=38 * COUNTED))
    assert (stored.text, stored.left_out) == ("It went on.", None)


async def test_a_tree_that_is_behind_has_the_newest_of_its_tail(database: Database) -> None:
    await make(database, NOTES, TREE)
    item = await store_question(
        database,
        MEMORY,
        "What of it?",
        revision=0,
        applied_position=40,
        navigation=NavigationRequest(max_calls=50),
    )
    stored, _ = await navigated(database, item, "Note 40", bounded(max_tail_bytes=4 * COUNTED))
    assert (stored.text, stored.left_out) == ("It went on.", (1, 36))
    assert {one.position > 36 for one in stored.citations} == {True}
    prompts = await exported(database, "m", item)
    assert len(prompts) >= 2, "they are made again"


async def exported(database: Database, memory: str, item: WorkItem) -> list[TrainingExample]:
    found = trajectories(database).export(DEFAULT_TENANT, "s", memory, [item.item_id])
    return [one async for one in found]


def cutting(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Returns the threads in which segments are cut from now on."""
    threads = set[int]()

    def noted(work: Any) -> Any:
        def does(*args: Any) -> Any:
            threads.add(threading.get_ident())
            return work(*args)

        return does

    monkeypatch.setattr(Segmenter, "feed", noted(Segmenter.feed))
    monkeypatch.setattr(Segmenter, "finish", noted(Segmenter.finish))
    return threads


async def test_a_tail_is_cut_beside_the_event_loop(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(database, NOTES)
    threads = cutting(monkeypatch)
    monkeypatch.setattr(log_range, "PAGE_CHUNKS", 7)
    tail = await read_tail(held(database, 40), TextOffset(1), segment_tokens=64, max_bytes=1 << 20)
    # Each begins a line, since the one before ends with a sentence.
    lines = [line for cut in tail.cuts for line in cut.text.splitlines()]
    assert lines == NOTES
    assert tail.left_out is None
    assert threads
    assert threading.get_ident() not in threads


async def test_a_tree_is_segmented_beside_the_event_loop(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = cutting(monkeypatch)
    await make(database, NOTES, TREE)
    assert await tree_method(database, Script()).drain(ITEM) is None
    assert (await stored_memory(database)).applied_position == 40
    assert threads
    assert threading.get_ident() not in threads


async def opened(database: Database, hits: list[BrowseHit], most: int, **more: Any) -> BrowsedLog:
    """Pieces of 300 characters: three chunks."""
    return await BrowsedLog.open(
        held(database, 40), pack(300), Ranked(hits), max_bytes=most, **more
    )


async def read(log: BrowsedLog, frame: Frame) -> str:
    piece = await log.fetch(ReadPiece(number=frame.number))
    return "".join(part.text for part in piece.parts)


async def test_of_a_long_log_both_ends_are_pieces_and_retrieval_has_the_rest(
    database: Database,
) -> None:
    await write(database, NOTES)
    hits = [
        BrowseHit(position=p, from_character=c) for p, c in ((20, None), (20, 3), (2, 0), (40, 0))
    ]
    log = await opened(database, hits, 12 * COUNTED)
    assert log.left_out == (7, 34)
    assert [one.number for one in log.frames] == [1, 2, 3, 4]
    texts = [await read(log, one) for one in log.frames]
    assert "".join(texts) == "".join((*NOTES[:6], *NOTES[34:]))
    found = await log.fetch(RankPieces(query="What?", count=8))
    # What is about chunk 20 has chunk 21 too; the pieces at the ends are those that are known.
    assert [one.number for one in found[1:]] == [1, 4]
    assert found[0].number > 4
    assert (found[0].from_position, found[0].to_position) == (19, 21)
    assert NOTES[19] in await read(log, found[0])
    assert log.frame_of(20, 50) == found[0]
    assert log.frame_of(40, 5).number == 4


async def test_what_retrieval_named_is_found_again_by_its_number(database: Database) -> None:
    await write(database, [*NOTES[:20], "A key! " * 200, *NOTES[21:]])
    hits = [BrowseHit(position=21, from_character=900), BrowseHit(position=33, from_character=0)]
    log = await opened(database, hits, 12 * COUNTED)
    found = await log.fetch(RankPieces(query="Which key?", count=8))
    numbers = tuple(one.number for one in found)
    assert len(numbers) == 2
    assert found[0].from_position == found[0].to_position == 21
    assert found[0].from_character <= 900 < found[0].to_character
    later = await opened(database, [], 12 * COUNTED, ranked=[(*numbers, 2, 10**9)])
    again = await later.fetch(RankPieces(query="Which key?", count=8))
    assert [one.number for one in again] == [*numbers, 2]
    assert again[:2] == found
    assert [await read(later, one) for one in again[:2]] == [await read(log, one) for one in found]
    with pytest.raises(ValueError, match="no piece"):
        await later.fetch(ReadPiece(number=5))


async def test_opening_reads_no_more_of_a_longer_log(database: Database) -> None:
    await write(database, NOTES)
    with statements() as sent:
        log = await opened(database, [], 12 * COUNTED)
    assert len(log.frames) == 4
    assert positions_read(sent) == [(0, 6), (34, 40)]
    # What was left out stays so, whatever may be read by now.
    again = await opened(database, [], 1 << 20, left_out=log.left_out)
    assert (again.frames, again.left_out) == (log.frames, log.left_out)


@pytest.mark.parametrize("option", [BrowseOption.RANK, BrowseOption.DYNAMIC])
async def test_a_question_to_a_long_log_is_answered_from_its_middle_and_says_so(
    database: Database, option: BrowseOption
) -> None:
    texts = [*NOTES[:20], "The cat caught a mouse there. " * 3, *NOTES[21:]]
    await write(database, texts)
    item = await ask_log(database, up_to=40, option=option, window_tokens=WINDOW, pieces=2)
    ranks = Ranked(
        [BrowseHit(position=21, from_character=None), BrowseHit(position=1, from_character=0)]
    )
    script = Script(reply=Words("mouse", option=option))
    config = bounded(max_browsed_bytes=12 * COUNTED)
    made = answerer(database, gateway(script, database), config, ranks=lambda *_: ranks)
    await made.make(item)
    stored = await read_answer(database, item)
    if option is BrowseOption.RANK:
        assert stored.text.startswith("The cat caught a mouse there")
        assert {one.position for one in stored.citations} == {21}
        assert stored.citations[0].from_position <= 21 <= stored.citations[0].to_position
    assert stored.left_out == (7, 34)
    told = AnswerMessages(b"k").answer(AskDone(answer=stored, usage=()))
    assert (told.left_out.first, told.left_out.last) == (7, 34)
    if stored.text:
        assert len(await exported(database, "", item)) == len(script.asked)


async def test_usage_of_an_answer_is_found_by_its_memory(database: Database) -> None:
    await make_state(database, NOTES)
    item = await ask_state(database, 40)
    await navigated(database, item, "Note 40", CONFIG)
    named = occasion(item.item_id)
    with statements() as sent:
        async with database.transaction(DEFAULT_TENANT) as tx:
            lines = await calls.usage_of_answer(tx, KEY, item.item_id, named)
            found = await calls.usage_of(tx, KEY, [named], [STATE])
    assert sum(line.calls for line in lines) >= 1
    assert tuple(found[named]) == lines
    looks = [one for one in sent if " call c" in one]
    assert len(looks) == 2
    for look in looks:
        # The planner knows nothing of the calls: to it each of their indexes is as good.
        async with database.transaction(DEFAULT_TENANT) as tx:
            await tx.execute("SET LOCAL enable_seqscan = off")
            rows = await tx.fetch(f"EXPLAIN {look}", look.values)
            plan = [row[0] for row in rows]
        conditions = [
            plan[at + 1]
            for at, line in enumerate(plan)
            if " on call " in line or "on call c" in line
        ]
        assert len(conditions) == 2, plan
        assert all("occasion" in line and "memory_id" in line for line in conditions), plan
