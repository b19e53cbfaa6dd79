"""Parts of lists end by rows and by bytes, and together they are the whole list."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import insert, update

from service.app.kinds import memories_of
from service.domain.values.tenancy import DEFAULT_TENANT
from service.settings.config import Limits
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.edit import Edit, Editor, Target
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.answers import answers, listing, trajectories
from storage.engine.database import Database, Transaction
from storage.engine.listing import ListPage
from storage.memories import history
from storage.prism import amendment_log
from storage.prism.amendment_log import AmendmentFilter
from storage.tables import answer, rejection
from storage.tree import views
from tests.integration.answers.test_trajectories import EVENT, asked
from tests.integration.support.scripted import KEY, MEMORY, make
from tests.integration.support.tree_rows import TREE, make_tree
from tests.integration.support.writing import drop_wake_ups

#: Of the texts of the rows, in this order.
SIZES = (1, 5000, 1, 1, 900, 3, 20_000, 1, 4000, 2, 2, 700)
#: Rows and bytes of a part.
PARTS = ((100, 2**31), (5, 2**31), (100, 1), (100, 5000), (3, 5000), (1, 1))

Read = Callable[[Any, int, int], Awaitable[ListPage[Any]]]


async def check(read: Read, place: Callable[[Any], Any], first: Any, whole: Sequence[Any]) -> None:
    """`read` takes where a part begins, rows and bytes; `place` says where an item is."""
    for limit, max_bytes in PARTS:
        found: list[Any] = []
        after, more = first, True
        while more:
            part = await read(after, limit, max_bytes)
            assert 0 < len(part.items) <= (1 if max_bytes == 1 else limit)
            found += part.items
            after, more = place(part.items[-1]), part.more
        assert found == list(whole)
        # A page at the end is empty, and has no token.
        assert await read(after, limit, max_bytes) == ListPage(items=[], more=False)


@pytest.fixture
async def edited(database: Database) -> Database:
    """Returns a memory whose revisions have values and comments of many sizes."""
    await make(database, ["a"])
    memories = memories_of(
        database,
        WakeUps(drop_wake_ups),
        ProgressWatcher(database),
        b"token-key",
        Limits(max_memories=9),
    )
    editor = Editor(database, memories, Limits())
    for number, size in enumerate(SIZES):
        value = f'"{number} {"x" * size}"'
        edits = [Edit(op=None, path=f"$.topics.t{number % 3}", value_json=value)]
        target = Target(session="s", memory="m", comment="c" * (size % 1000))
        await editor.revise(DEFAULT_TENANT, target, edits)
    return database


async def test_amendments(edited: Database) -> None:
    async with edited.transaction(DEFAULT_TENANT) as tx:

        async def read(after: Any, limit: int, max_bytes: int) -> ListPage[Any]:
            return await amendment_log.page_amendments(
                tx, KEY, MEMORY, after, limit, AmendmentFilter(), max_bytes=max_bytes
            )

        whole = await amendment_log.list_amendments(tx, KEY, MEMORY, (0, 0), 1000)
        assert len(whole) == len(SIZES)
        await check(read, lambda one: (one.revision, one.ordinal), (0, 0), whole)


async def test_revisions(edited: Database) -> None:
    async with edited.transaction(DEFAULT_TENANT) as tx:

        async def read(after: Any, limit: int, max_bytes: int) -> ListPage[Any]:
            return await history.page_revisions(tx, KEY, MEMORY, after, limit, max_bytes=max_bytes)

        whole = await history.list_revisions(tx, KEY, MEMORY, 0, 1000)
        assert len(whole) == len(SIZES)
        await check(_spare(read), lambda one: one.revision, 0, whole)


def _spare(read: Read) -> Read:
    """Reads pages of one byte, which revisions without a comment share with the next one."""

    async def spared(after: Any, limit: int, max_bytes: int) -> ListPage[Any]:
        return await read(after, 1 if max_bytes == 1 else limit, max_bytes)

    return spared


async def test_rejections(edited: Database) -> None:
    async with edited.transaction(DEFAULT_TENANT) as tx:
        for number, size in enumerate(SIZES, 1):
            row = {"session_key": KEY, "memory_id": MEMORY, "tenant_id": DEFAULT_TENANT}
            values = {"revision": 1 + number // 5, "ordinal": number, "proposal": "p" * size}
            await tx.execute(insert(rejection).values(**row, **values, reason="r"))

        async def read(after: Any, limit: int, max_bytes: int) -> ListPage[Any]:
            return await amendment_log.page_rejections(
                tx, KEY, MEMORY, after, limit, max_bytes=max_bytes
            )

        whole = (await read((0, 0), 1000, 2**31)).items
        assert [len(one.proposal) for one in whole] == list(SIZES)
        await check(read, lambda one: (one.revision, one.ordinal), (0, 0), whole)


async def test_events_and_answers(database: Database) -> None:
    await make_tree(database, ["a"])
    async with database.transaction(DEFAULT_TENANT) as tx:
        key = KEY, await asked(tx)
        for number, size in enumerate(SIZES, 1):
            await trajectories.append(tx, key, replace(EVENT, ordinal=number, text="t" * size))

        async def read(after: Any, limit: int, max_bytes: int) -> ListPage[Any]:
            return await trajectories.page_events(tx, key, after, limit, max_bytes=max_bytes)

        # Lists contain no replies.
        whole = [replace(one, reply="") for one in await trajectories.list_events(tx, key, 0)]
        assert len(whole) == len(SIZES)
        await check(read, lambda one: one.ordinal, 0, whole)
    for size in SIZES[1:]:
        # At different times, which order them.
        async with database.transaction(DEFAULT_TENANT) as tx:
            await _ask(tx, "q" * size)
    async with database.transaction(DEFAULT_TENANT) as tx:

        async def newest(before: Any, limit: int, max_bytes: int) -> ListPage[Any]:
            return await listing.list_newest(
                tx,
                KEY,
                memory_id=TREE,
                status=None,
                before=before,
                limit=limit,
                max_bytes=max_bytes,
            )

        all_of_them = (await newest(None, 1000, 2**31)).items
        assert [len(one.query) for one in all_of_them] == [*SIZES[:0:-1], 1]
        await check(newest, lambda one: (one.created_at, one.answer_id), None, all_of_them)


async def _ask(tx: Transaction, query: str) -> None:
    await answers.create(
        tx,
        session_key=KEY,
        answer_id=uuid4(),
        memory_id=TREE,
        query=query,
        revision=1,
        applied_position=1,
    )


async def test_nodes_of_a_level_end_one_after_the_bytes(database: Database) -> None:
    await make_tree(database, ["x" * size for size in SIZES])
    async with database.transaction(DEFAULT_TENANT) as tx:
        whole = await views.list_level(tx, KEY, TREE, 0, 0, 1000)
        assert len(whole) == len(SIZES)
        sizes = [len(one.node.summary) for one in whole]
        for max_bytes in (1, sizes[0] + 1, sum(sizes[:4]), sum(sizes) + 1):
            found = await views.list_level(tx, KEY, TREE, 0, 0, 1000, max_bytes=max_bytes)
            reached = next(
                (n for n in range(1, len(sizes)) if sum(sizes[:n]) >= max_bytes), len(sizes)
            )
            assert list(found) == list(whole[: reached + 1])


async def test_what_is_packed_where_it_is_stored_counts_as_it_is_read(database: Database) -> None:
    """Three megabytes that are stored in a hundredth of it come in parts of no more than said."""
    packed, most = "again and " * 10_000, 250_000
    await make_tree(database, ["a"])
    ids = []
    async with database.transaction(DEFAULT_TENANT) as tx:
        key = KEY, await asked(tx)
        for number in range(1, 31):
            await trajectories.append(tx, key, replace(EVENT, ordinal=number, text=packed))
        found = await trajectories.page_events(tx, key, 0, 1000, max_bytes=most)
        assert ([one.ordinal for one in found.items], found.more) == ([1, 2, 3], True)
    for _ in range(30):
        async with database.transaction(DEFAULT_TENANT) as tx:
            ids.append(await asked(tx))
            this = (answer.c.session_key == KEY) & (answer.c.answer_id == ids[-1])
            await tx.execute(update(answer).where(this).values(value={"text": packed}))
    async with database.transaction(DEFAULT_TENANT) as tx:
        listed = await listing.list_newest(
            tx, KEY, memory_id=None, status=None, before=None, limit=1000, max_bytes=most
        )
        assert [one.answer_id for one in listed.items] == ids[:-4:-1]
        assert listed.more
