"""What clients see of a memory whose history is thinned, by real processes with the offline model.

Dates of rows are the clock.
"""

import hashlib
import json

import psycopg
import pytest

import palimpsest
from palimpsest import Edit
from service.settings.config import Config
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations.retention import Retainer
from storage.engine.database import Database
from tests.integration.support.writing import drop_wake_ups
from tests.support.harness import Servers, api, worker

SCHEMA = "class Notes:\n    said: list[str]\n    topics: dict[str, str]\n"
TEXTS = [
    f"The museum number {n} is a ship in harbour {n * 7}, and it opens at {n} o'clock."
    for n in range(12)
]
DAYS, A_DAY = 4, 9


async def fill(session: palimpsest.Session) -> int:
    """Makes a memory of what chunks say, and of edits by hand; returns its newest revision."""
    memory = await session.create_memory("m", SCHEMA, chunk_tokens=1, encoding="in_place")
    async with session.producer("p") as producer:
        for text in TEXTS:
            await producer.append(text)
        ack = await producer.flush()
    assert ack is not None
    revision = (await memory.get(after=ack.read_token, timeout=200)).revision
    while revision < DAYS * A_DAY + 10:
        edit = Edit.put(f"$.topics.t{revision % 4}", f"by hand {revision}")
        revision = (await memory.edit([edit])).info.revision
    return revision


async def shown(memory: palimpsest.Memory, revision: int | None) -> str:
    """Returns the value at a revision as canonical JSON."""
    reading = await memory.get(revision=revision)
    return json.dumps(reading.value, ensure_ascii=False, separators=(",", ":"))


def pass_time(servers: Servers, url: str) -> None:
    """Has the revisions be of four days, long ago, and a pass of retention be due."""
    with psycopg.connect(servers.as_superuser(url)) as admin:
        admin.execute(
            "UPDATE revision SET created_at = date_trunc('day', now(), 'UTC')"
            " - make_interval(days => 40 - ((revision - 1) / %s)::integer) WHERE revision > 0",
            (A_DAY,),
        )
        admin.execute("UPDATE retention_turn SET ready_at = now()")


async def retain(url: str) -> None:
    """Applies policies, as a worker does each hour."""
    database = Database.connect(url, pool_size=2, name="test")
    try:
        await Retainer(database, WakeUps(drop_wake_ups), b"key", Config()).look()
    finally:
        await database.close()


@pytest.mark.prove
async def test_clients_read_what_is_kept_and_are_told_of_the_rest(servers: Servers) -> None:
    url = servers.new_database()
    with api(url) as (_, address), worker(url):
        async with palimpsest.connect(address) as client:
            policy = palimpsest.Retention(history_days=30)
            session = await client.create_session("s", default_memory=False, retention=policy)
            newest = await fill(session)
            memory = session.memory("m")
            before = {at: await shown(memory, at) for at in range(newest + 1)}
            said = [one async for one in await memory.provenance("$.said[0]")]
            pass_time(servers, url)
            await retain(url)

            listed = [one async for one in memory.revisions()]
            expired = {one.revision for one in listed if one.expired}
            days = range(A_DAY, DAYS * A_DAY + 1, A_DAY)
            kept = {0, *days, *range(days[-1], newest + 1)}
            assert expired == set(range(newest + 1)) - kept
            for at in kept:
                assert await shown(memory, at) == before[at]
                digest = hashlib.sha256(before[at].encode()).digest()
                assert listed[at].value_digest == digest, "byte by byte"
            after = [one async for one in await memory.provenance("$.said[0]")]
            assert after[-1].chunks == said[-1].chunks != ()
            for refused in (
                memory.get(revision=A_DAY + 2),
                memory.diff(revision=A_DAY + 2),
                memory.provenance("$.said[0]", revision=A_DAY + 2),
                memory.rollback(A_DAY + 2),
            ):
                with pytest.raises(palimpsest.FailedPrecondition) as caught:
                    await refused
                assert caught.value.reason == "HISTORY_EXPIRED"
                assert caught.value.metadata["earlier_revision"] == str(A_DAY)
                assert caught.value.metadata["later_revision"] == str(2 * A_DAY)
            rolled = await memory.rollback(2 * A_DAY)
            assert await shown(memory, None) == before[2 * A_DAY]
            assert rolled.revision == newest + 1
            assert (await memory.ask("Where is the ship?", timeout=100)).text
