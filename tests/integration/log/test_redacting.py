"""Redacting chunks: tombstones keep their positions, and what is sent again stays away."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from uuid import uuid4

import psycopg
import pytest

from service.domain.log.appending import SERVER_PRODUCER, Request, Submission
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.log.keeping_out import phrase_rule
from service.domain.log.redactions import RedactionCause, keyed_digest
from service.domain.values.errors import AlreadyExists
from service.domain.values.tenancy import DEFAULT_TENANT
from service.settings.config import Limits
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations.verify import LocatedDifference, Verifier
from storage.engine.database import Database
from storage.log import chunks, keeping_out, redacting, sessions
from storage.log.redacting import RedactedChunks
from tests.integration.support.scripted import KEY
from tests.integration.support.search_rows import index_words
from tests.integration.support.statements import statements
from tests.integration.support.writing import (
    append_chunks,
    append_texts,
    drop_wake_ups,
    submission,
)

KEYED = partial(keyed_digest, b"token-key", DEFAULT_TENANT)
SECRET = Chunk(
    kind=ChunkKind.MESSAGE,
    role="user",
    text="the zanzibar cipher",
    thread="t",
    source="ann",
    metadata={"zanzibar": "cipher"},
)


@pytest.fixture(autouse=True)
async def session(database: Database) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")


@pytest.fixture
async def appender(database: Database) -> AsyncIterator[Appender]:
    made = Appender(database, WakeUps(drop_wake_ups), b"token-key", Limits())
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()


async def redact(database: Database, positions: Sequence[int]) -> RedactedChunks:
    async with database.transaction(DEFAULT_TENANT, name="redact") as tx:
        return await redacting.redact(
            tx,
            KEY,
            uuid4(),
            positions,
            KEYED,
            cause=RedactionCause.REDACTED,
            principal="key:1",
            reason="asked for",
        )


async def differences(database: Database) -> list[LocatedDifference]:
    verifier = Verifier(database, {})
    found = [one async for one in verifier.verify(DEFAULT_TENANT, "s")]
    return [one for one in found if isinstance(one, LocatedDifference)]


async def everything(database: Database, table: str) -> str:
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await tx.fetch(f"SELECT t::text FROM {table} t")
    return "\n".join(row[0] for row in rows)


async def test_a_tombstone_keeps_its_position_and_nothing_of_its_content(
    database: Database,
) -> None:
    await append_texts(database, "s", ["before"])
    await append_chunks(database, "s", [SECRET], first=2)
    await append_texts(database, "s", ["after"], first=3)
    await index_words(database, 3)
    assert "zanzibar" in await everything(database, "chunk_word")
    made = await redact(database, [2, 7])
    assert made.positions == [2]
    async with database.transaction(DEFAULT_TENANT) as tx:
        read = await chunks.read(tx, KEY, 0, 10)
        found = await redacting.read_redactions(tx, KEY, [read[1].redaction_id or uuid4()])
    assert [one.position for one in read] == [1, 2, 3]
    assert [one.chunk.as_text() for one in read] == ["before", "", "after"]
    assert read[1].chunk == Chunk(kind=ChunkKind.MESSAGE, observed_first=None, is_redacted=True), (
        "only the kind is left"
    )
    assert (read[1].producer_id, read[1].producer_sequence) == ("p", 2)
    (redaction,) = found.values()
    assert (redaction.principal, redaction.reason) == ("key:1", "asked for")
    assert redaction.chunks == 1
    for table in ("chunk", "chunk_word"):
        said = await everything(database, table)
        assert "zanzibar" not in said
        assert "cipher" not in said
        assert SECRET.digest().hex() not in said, "guesses could be compared with it"
    assert await differences(database) == []


async def test_redacting_again_changes_nothing(database: Database) -> None:
    await append_texts(database, "s", ["a", "b"])
    await redact(database, [1])
    before = await everything(database, "chunk")
    assert (await redact(database, [1])).positions == ()
    assert await everything(database, "chunk") == before


async def test_what_is_sent_again_is_acked_and_stays_away(
    database: Database, appender: Appender
) -> None:
    sent = submission("s", ["a", "zanzibar", "c"])
    assert (await appender.submit(DEFAULT_TENANT, sent)).position == 3
    await redact(database, [2])
    again = await appender.submit(DEFAULT_TENANT, sent)
    assert (again.first_position, again.position) == (1, 3)
    for other in (["a", "zanzibaz", "c"], ["a", "", "c"]):
        with pytest.raises(AlreadyExists):
            await appender.submit(DEFAULT_TENANT, submission("s", other))
    assert "zanzibar" not in await everything(database, "chunk")


def requested(*texts: str) -> Submission:
    sent = submission("s", texts, producer=SERVER_PRODUCER)
    digest = sha256(b"".join(chunk.digest for chunk in sent.chunks)).digest()
    return replace(
        sent,
        chunks=tuple(replace(chunk, sequence=0) for chunk in sent.chunks),
        request=Request(request_id="r", digest=digest),
    )


async def test_a_step_of_an_agent_loses_each_of_its_parts(database: Database) -> None:
    step = Chunk(
        kind=ChunkKind.STEP,
        observed_first=True,
        occurred_at=datetime(2026, 11, 27, tzinfo=UTC),
        observation="zanzibar seen",
        thought="zanzibar thought",
        action="zanzibar done",
    )
    await append_chunks(database, "s", [step])
    await redact(database, [1])
    async with database.transaction(DEFAULT_TENANT) as tx:
        (read,) = await chunks.read(tx, KEY, 0, 10)
    assert read.chunk == Chunk(kind=ChunkKind.STEP, observed_first=None, is_redacted=True)
    assert "zanzibar" not in await everything(database, "chunk")


async def test_a_request_that_comes_again_is_recognised_after_two_redactions(
    database: Database, appender: Appender
) -> None:
    first = await appender.submit(DEFAULT_TENANT, requested("zanzibar", "b"))
    for position in (1, 2):
        await redact(database, [position])
        assert await appender.submit(DEFAULT_TENANT, requested("zanzibar", "b")) == first
    with pytest.raises(AlreadyExists):
        await appender.submit(DEFAULT_TENANT, requested("zanzibaz", "b"))
    sent = requested("zanzibar", "b").request
    assert sent is not None
    assert await requested_digest(database) != sent.digest
    assert await differences(database) == []


async def test_each_request_is_compared_with_its_own_chunks_alone(
    database: Database, appender: Appender
) -> None:
    await appender.submit(DEFAULT_TENANT, requested("zanzibar", "b"))
    with statements() as sent:
        await redact(database, [1])
    (statement,) = [one for one in sent if "SELECT request_id, digest FROM request" in one]
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await tx.fetch(f"EXPLAIN {statement}", statement.values, prepare=False)
    plan = [row[0].strip() for row in rows]
    assert sum("chunk_pkey on chunk" in one for one in plan) == 2, plan
    bounded = [one for one in plan if one.startswith("Index Cond") and '("position" >=' in one]
    assert len(bounded) == 2, plan
    assert not any("Function Scan" in one or "Join" in one for one in plan), plan


async def test_a_request_with_a_text_that_is_kept_out_has_a_keyed_digest(
    database: Database, appender: Appender
) -> None:
    rule = phrase_rule("zanzibar", KEYED)
    assert rule is not None
    async with database.transaction(DEFAULT_TENANT) as tx:
        await keeping_out.add(tx, KEY, uuid4(), [rule])
    sent = requested("a zanzibar code")
    assert sent.request is not None
    await appender.submit(DEFAULT_TENANT, sent)
    assert await requested_digest(database) == KEYED(sent.request.digest)
    assert (await appender.submit(DEFAULT_TENANT, sent)).position == 1


async def requested_digest(database: Database) -> bytes:
    async with database.transaction(DEFAULT_TENANT) as tx:
        ((digest,),) = await tx.fetch("SELECT digest FROM request")
    return bytes(digest)


async def test_no_statement_gives_a_chunk_other_content(database: Database) -> None:
    await append_texts(database, "s", ["a"])
    for change in ("text = 'other'", "redaction_id = gen_random_uuid()"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            async with database.transaction(DEFAULT_TENANT) as tx:
                await tx.execute(f"UPDATE chunk SET {change}")


async def test_words_that_are_written_meanwhile_hold_nothing_of_it(database: Database) -> None:
    await append_texts(database, "s", ["zanzibar", "b"])
    await redact(database, [1])
    await index_words(database, 2)
    assert "zanzibar" not in await everything(database, "chunk_word")
    assert await differences(database) == []
