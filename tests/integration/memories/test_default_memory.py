"""The default memory: the first append makes it, once, and nothing else does."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from textwrap import indent
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

import palimpsest
from palimpsest.v1 import session_service_pb2, session_service_pb2_grpc
from service.app.kinds import default_memories
from service.domain.log.appending import Submission
from service.domain.prism import default_memory
from service.domain.values.errors import OutOfRange
from service.domain.values.memory_specs import DefaultMemory
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Config, Limits
from service.usecases.log import sessions as session_use_cases
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from storage.engine.database import Database
from storage.memories import memories
from tests.acceptance.guides.pages import program
from tests.acceptance.operations.verified import verified
from tests.integration.support.statements import statements
from tests.integration.support.writing import drop_wake_ups, text_chunk
from tests.support.guides import section
from tests.support.harness import Servers, api, worker
from verification.chaos.switches import Action, Switches, environment

GENERAL = {"PALIMPSEST_DEFAULT_MEMORY": "general"}
SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"
NAMES = count(1)


@pytest.fixture(scope="module")
def general(servers: Servers) -> Iterator[tuple[str, str]]:
    """Yields two servers on one database, whose sessions get a default memory."""
    url = servers.new_database()
    with api(url, **GENERAL) as (_, one), api(url, **GENERAL) as (_, other), worker(url):
        yield one, other


@pytest.fixture
async def client(general: tuple[str, str]) -> AsyncIterator[palimpsest.Client]:
    async with palimpsest.connect(general[0]) as client:
        yield client


@pytest.fixture
async def session(client: palimpsest.Client) -> palimpsest.Session:
    return await client.create_session(f"s-{next(NAMES)}")


async def ids(session: palimpsest.Session) -> list[str]:
    return [one.id for one in await session.memories()]


def test_it_is_the_default() -> None:
    assert Config().default_memory == "general"
    assert {one.value for one in DefaultMemory} == {"general", "none"}


async def test_an_append_makes_it_and_it_reads_what_is_appended(
    session: palimpsest.Session,
) -> None:
    assert (await session.info()).default_memory == "general"
    ack = await session.append("Ana moved to Bern in May, and Ana works as a nurse there.")
    (info,) = await session.memories()
    assert (info.id, info.kind, info.steps) == (default_memory.NAME, "prism", "focused")
    assert (info.task, info.linger_seconds) == (default_memory.TASK, None)
    assert info.schema_source == default_memory.SPEC.shown_schema()
    state = await session.memory("default").get(after=ack.read_token)
    assert state.applied_position == 1
    # The offline model notes all below the first field.
    assert list(state.value) == ["topics"]
    answer = await session.ask("Where does Ana work?", after=ack.read_token)
    assert "nurse" in answer.text
    await session.append("More.")
    assert await ids(session) == ["default"]


async def test_the_example_of_the_guide(client: palimpsest.Client) -> None:
    text, _ = program(section("prism", "The default memory"))
    found: dict[str, Any] = {"client": client}
    exec(f"async def main():\n{indent(text, '    ')}    return answer", found)
    answer = await found["main"]()
    assert "peanuts" in answer.text
    assert await ids(client.session("ana")) == ["default"]


async def test_a_stream_makes_it_as_well(session: palimpsest.Session) -> None:
    async with session.producer("p") as producer:
        assert await ids(session) == [], "not its opening"
        await producer.append("One.")
        await producer.flush()
        assert await ids(session) == ["default"]


async def test_reads_make_none(session: palimpsest.Session) -> None:
    await session.info()
    await session.search("Bern")
    assert [chunk async for chunk in session.chunks()] == []
    with pytest.raises(palimpsest.NotFound):
        await session.memory("default").get()
    with pytest.raises(palimpsest.PalimpsestError):
        await session.append("never", expected_head=7)
    assert await ids(session) == []


async def test_many_producers_make_one(
    general: tuple[str, str], session: palimpsest.Session
) -> None:
    async with (
        palimpsest.connect(general[0]) as one,
        palimpsest.connect(general[1]) as other,
    ):
        sent = [
            client.session(session.id).append(f"{number}", request_id=f"r{number}")
            for number, client in enumerate([one, other] * 4)
        ]
        acks = await asyncio.gather(*sent)
    assert sorted(ack.positions.first for ack in acks) == [*range(1, 9)]
    assert await ids(session) == ["default"]
    memory = session.memory("default")
    await memory.get(fully_applied=True)
    read = [one.positions async for one in memory.revisions() if one.kind == "step"]
    assert sum(one.last - one.first + 1 for one in read if one) == 8


async def test_a_session_may_do_without(client: palimpsest.Client) -> None:
    session = await client.create_session(f"s-{next(NAMES)}", default_memory=False)
    assert (await session.info()).default_memory == "none"
    await session.append("One.")
    assert await ids(session) == []


async def test_a_session_may_have_one_where_the_service_makes_none(address: str) -> None:
    async with palimpsest.connect(address) as client:
        without = await client.create_session(f"s-{uuid4().hex}")
        assert (await without.info()).default_memory == "none"
        session = await client.create_session(f"s-{uuid4().hex}", default_memory=True)
        for one in (without, session):
            await one.append("One.")
        assert (await ids(without), await ids(session)) == ([], ["default"])


async def test_a_session_that_has_a_memory_gets_no_other(session: palimpsest.Session) -> None:
    await session.create_memory("mine", SCHEMA)
    await session.append("One.")
    assert await ids(session) == ["mine"]


async def test_what_was_deleted_is_not_made_again(client: palimpsest.Client) -> None:
    after, before = [await client.create_session(f"s-{next(NAMES)}") for _ in range(2)]
    await after.append("One.")
    await after.memory("default").delete()
    await before.create_memory("default", SCHEMA)
    await before.memory("default").delete()
    assert (await before.info()).default_memory == "none"
    for session in (after, before):
        await session.append("Two.")
        assert await ids(session) == []


async def test_a_session_of_the_same_name_gets_one_anew(client: palimpsest.Client) -> None:
    name = f"s-{next(NAMES)}"
    session = await client.create_session(name)
    await session.append("One.")
    await session.delete()
    while True:
        try:
            await client.create_session(name)
            break
        except palimpsest.Aborted:
            await asyncio.sleep(0.05)
    assert (await session.info()).default_memory == "general"
    await session.append("Two.")
    assert await ids(session) == ["default"]


async def test_a_request_that_comes_again_says_the_same(client: palimpsest.Client) -> None:
    name = f"s-{next(NAMES)}"
    session = client.session(name)
    for _ in range(2):
        await client.create_session(name, default_memory=False, request_id=name)
    with pytest.raises(palimpsest.AlreadyExists):
        await client.create_session(name, default_memory=True, request_id=name)
    await session.append("One.")
    assert await ids(session) == []


async def test_a_value_that_there_is_not_is_refused(client: palimpsest.Client) -> None:
    request = session_service_pb2.CreateSessionRequest(
        session=session_service_pb2.Session(id="other", default_memory=9)  # type: ignore[arg-type]
    )
    stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
    with pytest.raises(palimpsest.InvalidArgument, match="default_memory"):
        await client.call(stub.CreateSession, request)


async def test_it_counts_as_a_memory(servers: Servers) -> None:
    url = servers.new_database()
    with api(url, PALIMPSEST_LIMIT_MAX_MEMORIES="1", **GENERAL) as (_, address):
        async with palimpsest.connect(address) as client:
            session = await client.create_session("s")
            await session.append("One.")
            with pytest.raises(palimpsest.PalimpsestError) as refused:
                await session.create_memory("mine", SCHEMA)
            assert refused.value.reason == "TOO_MANY_MEMORIES"
    assert await verified(url) == []


@pytest.mark.parametrize("point", ["append.group:statement", "append.group:commit"])
async def test_a_server_that_is_killed_before_the_commit_has_made_none(
    url: str, folder: Path, point: str
) -> None:
    path = folder / "switches"
    switches = Switches(path)
    with api(url, **GENERAL, **environment(path)) as (_, address):
        async with palimpsest.connect(address) as client:
            session = await client.create_session("s")
            switches.set(point, Action.KILL)
            with pytest.raises(palimpsest.Unavailable):
                await session.append("One.", request_id="r", timeout=0.1)
    assert switches.counts(point).failed == 1
    switches.close()
    with api(url, **GENERAL) as (_, address):
        async with palimpsest.connect(address) as client:
            session = client.session("s")
            before = await ids(session)
            ack = await session.append("One.", request_id="r")
            assert (before, await ids(session)) == ([], ["default"])
            assert ack.positions.first == 1
    assert await verified(url) == []


# Below the API


@asynccontextmanager
async def appending(database: Database) -> AsyncIterator[Appender]:
    appender = Appender(
        database, WakeUps(drop_wake_ups), b"token-key", Limits(), default_memories()
    )
    running = asyncio.create_task(appender.run())
    yield appender
    running.cancel()


def submission(tenant_id: UUID, session: str, number: int, text: str) -> Submission:
    return Submission(
        session=session,
        session_key=session_key(tenant_id, session),
        producer_id="p",
        epoch=0,
        expected_head=None,
        chunks=(text_chunk(number, text),),
    )


async def appended(database: Database, tenant_id: UUID, session: str, *texts: str) -> None:
    async with appending(database) as appender:
        for number, text in enumerate(texts, start=1):
            await appender.submit(tenant_id, submission(tenant_id, session, number, text))


async def create(database: Database, tenant_id: UUID, session: str) -> None:
    await session_use_cases.create(
        database, tenant_id, session, language="english", default_memory=DefaultMemory.GENERAL
    )


async def test_it_belongs_to_the_tenant_of_its_session(
    database: Database, servers: Servers, url: str
) -> None:
    other = uuid4()
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as admin:
        admin.execute("INSERT INTO tenant (tenant_id, name) VALUES (%s, 'other')", (other,))
    for tenant_id in (DEFAULT_TENANT, other):
        await create(database, tenant_id, "s")
    await appended(database, other, "s", "One.")
    found = []
    for tenant_id in (DEFAULT_TENANT, other):
        async with database.transaction(tenant_id) as tx:
            keys = [session_key(one, "s") for one in (DEFAULT_TENANT, other)]
            found.append([len(await memories.list_all(tx, key)) for key in keys])
    assert found == [[0, 0], [0, 1]]


async def test_a_memory_that_is_made_meanwhile_is_the_only_one(
    database: Database, servers: Servers, url: str
) -> None:
    """The append waits for the lock of the session, and has read by then that there is none."""
    await create(database, DEFAULT_TENANT, "s")
    key = session_key(DEFAULT_TENANT, "s")
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute("SELECT FROM session WHERE session_key = %s FOR NO KEY UPDATE", (key,))
        append = asyncio.create_task(appended(database, DEFAULT_TENANT, "s", "One."))
        with psycopg.connect(servers.as_superuser(url), autocommit=True) as admin:
            query = "SELECT FROM pg_locks WHERE NOT granted"
            while admin.execute(query).fetchone() is None:
                await asyncio.sleep(0.01)
        await memories.create_first(
            tx,
            [(key, uuid4())],
            name="mine",
            spec=default_memory.SPEC,
            digest=b"",
            value="{}",
        )
    await append
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert [one.name for one in await memories.list_all(tx, key)] == ["mine"]


async def test_a_refused_append_leaves_it_to_the_next_one(database: Database) -> None:
    """The server remembers the producer by then, and would append in one round trip."""
    await create(database, DEFAULT_TENANT, "s")
    async with appending(database) as appender:
        await appender.open(
            DEFAULT_TENANT, session="s", producer_id="p", epoch=0, expected_head=None
        )
        with pytest.raises(OutOfRange):
            await appender.submit(DEFAULT_TENANT, submission(DEFAULT_TENANT, "s", 2, "Two."))
        await appender.submit(DEFAULT_TENANT, submission(DEFAULT_TENANT, "s", 1, "One."))
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await memories.list_all(tx, session_key(DEFAULT_TENANT, "s"))
    assert [one.name for one in found] == [default_memory.NAME]


async def test_only_the_first_append_looks_for_it(database: Database) -> None:
    await create(database, DEFAULT_TENANT, "s")
    with statements() as sent:
        await appended(database, DEFAULT_TENANT, "s", "One.", "Two.", "Three.")
    made = [one for one in sent if "INSERT INTO memory" in one]
    assert len(made) == 1
