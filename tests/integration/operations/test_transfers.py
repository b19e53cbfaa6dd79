"""Exports and imports of sessions: what is moved, continued, refused and hidden."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import palimpsest
from palimpsest import Edit
from service.app.kinds import use_cases
from service.domain.operations.transfer import blocks
from service.domain.operations.transfer.blocks import BlockWriter, ExportPlace, Header
from service.domain.values.errors import (
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    InvalidInput,
    NotFound,
)
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Limits
from service.usecases.operations.exporting import Exporter
from service.usecases.operations.importing import Importer, ImportRun
from service.usecases.operations.verify import LocatedDifference, Verifier
from storage.engine.database import Database
from storage.log import sessions
from tests.support.harness import Servers, api, worker

pytestmark = pytest.mark.timeout(600)
SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"
#: As many records to a block, so that small sessions have many.
RECORDS = 12


async def fill(address: str) -> None:
    """Makes a session with a bit of everything."""
    async with palimpsest.connect(address) as client:
        session = await client.create_session("s", metadata={"for": "tests"})
        prism = await session.create_memory("p", schema_source=SCHEMA, chunk_tokens=1)
        await session.create_tree("t", segment_tokens=64, max_children=2)
        await session.create_state("v", task="Find the ship.", period=3)
        async with session.producer("one") as producer:
            for number in range(20):
                await producer.append(
                    f"The ship {number} is in harbour {number * 7}, and stays. " * 3,
                    thread=f"thread-{number % 3}",
                    source="user:42" if number % 2 else "",
                    occurred_at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number),
                    metadata={"n": str(number)},
                )
        last = await session.append(
            [{"role": "guide", "content": 'quotes " and \u2028 é 👩‍🚀'}], request_id="once"
        )
        await prism.get(after=last.read_token, timeout=200)
        await session.state("v").context(fully_applied=True, timeout=200)
        await prism.edit([Edit.put("$.topics.by_hand", ["note"])], comment="by hand")
        await session.tree("t").get(after=last.read_token, timeout=200)
        answer = await prism.ask("Where is ship 4?", timeout=200)
        await session.rate(answer.id, good=True, comment="so it is")
        await session.set_budget("total", limit_tokens=10**9)


@dataclass
class Place:
    """A database with that session, and its export."""

    url: str
    file: bytes


@pytest.fixture(scope="module")
def place(servers: Servers) -> Iterator[Place]:
    """Yields a database that no process works on any more."""
    url = servers.new_database()
    with api(url) as (_, address), worker(url, **servers.redis_settings()) as process:
        asyncio.run(fill(address))
        assert process.stop() == 0

    async def export() -> bytes:
        database = Database.connect(url, pool_size=2, name="test")
        try:
            return await exported(database, "s")
        finally:
            await database.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_RECORDS", RECORDS)
        yield Place(url, asyncio.run(export()))


@pytest.fixture
async def database(place: Place) -> AsyncIterator[Database]:
    """Yields a pool on that database."""
    database = Database.connect(place.url, pool_size=4, name="test")
    yield database
    await database.close()


async def exported(
    database: Database, session: str, after: tuple[UUID, bytes] | None = None
) -> bytes:
    parts = Exporter(database).export(DEFAULT_TENANT, session, after=after)
    return b"".join([part async for part in parts])


async def opened(database: Database, file: bytes, name: str) -> ImportRun:
    importer = Importer(database, use_cases(), Limits())
    return await importer.open(DEFAULT_TENANT, file[: file.find(b"\n") + 1], name)


async def sent(run: ImportRun, data: bytes, part: int = 4096) -> None:
    for begin in range(0, len(data), part):
        async for _ in run.feed(data[begin : begin + part]):
            pass


async def imported(database: Database, file: bytes, name: str) -> None:
    run = await opened(database, file, name)
    await sent(run, after_line(file, run.through_line))
    run.end()


def after_line(file: bytes, line: int) -> bytes:
    return b"".join(file.splitlines(keepends=True)[line:])


def content(file: bytes) -> bytes:
    """Returns all lines but the header."""
    return after_line(file, 1)


async def is_visible(database: Database, name: str) -> bool:
    async with database.transaction(DEFAULT_TENANT) as tx:
        key = session_key(DEFAULT_TENANT, name)
        rows = await tx.fetch(
            "SELECT count(*) FROM memory WHERE session_key = %s AND deleted_at IS NULL", (key,)
        )
        return await sessions.get(tx, key) is not None or rows[0][0] > 0


def name() -> str:
    return f"copy-{uuid4().hex}"


async def test_a_copy_is_the_same_and_so_are_its_copies(database: Database, place: Place) -> None:
    first, second = name(), name()
    await imported(database, place.file, first)
    file = await exported(database, first)
    assert content(file) == content(place.file)
    found = Verifier(database, use_cases()).verify(DEFAULT_TENANT, first)
    assert [one async for one in found if isinstance(one, LocatedDifference)] == []
    await imported(database, file, second)
    assert content(await exported(database, second)) == content(place.file)


async def test_an_export_continues_after_each_check(database: Database, place: Place) -> None:
    lines = place.file.splitlines(keepends=True)
    export_id = UUID(json.loads(lines[0])["export_id"])
    checks = [at for at, one in enumerate(lines) if one.startswith(b'{"record":"check"')]
    assert len(checks) > 5
    for at in checks:
        rest = await exported(database, "s", (export_id, lines[at]))
        assert rest == b"".join(lines[at + 1 :])
    with pytest.raises(InvalidInput):
        await exported(database, "s", (export_id, lines[1]))
    # A week as the standard has it, which the database does not read.
    usage = ExportPlace(kind="usage", keys=("", "2024-W01-1", "", "", "", False))
    assert await exported(database, "s", (export_id, BlockWriter().close(usage)))
    with pytest.raises(NotFound) as refused:
        await exported(database, "s", (uuid4(), lines[checks[0]]))
    assert refused.value.reason is Reason.EXPORT_NOT_FOUND


async def test_an_import_continues_where_it_was_interrupted(
    database: Database, place: Place
) -> None:
    copy, size, through = name(), len(place.file), 0
    for upto in (size // 5, size // 2, size - 5):
        run = await opened(database, place.file, copy)
        rest = after_line(place.file, run.through_line)
        await sent(run, rest[: upto - (size - len(rest))])
        with pytest.raises(InvalidInput, match="ends too early"):
            run.end()
        assert not await is_visible(database, copy)
        through = run.through_line
    assert through > 30
    other = await exported(database, "s")
    with pytest.raises(FailedPrecondition) as refused:
        await opened(database, other, copy)
    assert refused.value.reason is Reason.IMPORT_UNFINISHED
    await imported(database, place.file, copy)
    assert content(await exported(database, copy)) == content(place.file)
    with pytest.raises(AlreadyExists):
        await opened(database, place.file, copy)


async def test_two_streams_never_write_one_block(database: Database, place: Place) -> None:
    copy = name()
    runs = [await opened(database, place.file, copy) for _ in range(2)]
    results = await asyncio.gather(
        *(sent(run, content(place.file)) for run in runs), return_exceptions=True
    )
    lost = [one for one in results if one is not None]
    assert len(lost) == 1
    assert isinstance(lost[0], Conflict)
    assert lost[0].reason is Reason.IMPORT_CONFLICT
    if not await is_visible(database, copy):
        await imported(database, place.file, copy)
    assert content(await exported(database, copy)) == content(place.file)


async def test_a_deleted_session_ends_its_export(database: Database, place: Place) -> None:
    copy = name()
    await imported(database, place.file, copy)
    parts = Exporter(database).export(DEFAULT_TENANT, copy)
    await anext(parts)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute("SET LOCAL app.removing = 'on'", prepare=None)
        await tx.execute(
            "UPDATE session SET deleted_at = now(), incarnation = incarnation + 1"
            " WHERE session_key = %s",
            (session_key(DEFAULT_TENANT, copy),),
        )
    with pytest.raises(Conflict) as refused:
        async for _ in parts:
            pass
    assert refused.value.reason is Reason.EXPORT_CHANGED


async def test_redacted_chunks_stay_tombstones_in_exports_of_before_and_after(
    servers: Servers, url: str, tmp_path: Path
) -> None:
    with api(url) as (_, address), worker(url, **servers.redis_settings()):
        async with palimpsest.connect(address) as client:
            session = await client.create_session("s")
            memory = await session.create_memory("p", schema_source=SCHEMA, chunk_tokens=1)
            one = await session.append("The ship Aurora is in harbour 7.", request_id="a")
            await memory.get(after=one.read_token, timeout=200)
            two = await session.append("The code of Berta is 4711.", request_id="b")
            await memory.get(after=two.read_token, timeout=200)
            before, after, again = tmp_path / "before", tmp_path / "after", tmp_path / "again"
            await session.export(before)
            found = await session.forget(text="4711")
            assert found.operation is not None
            await (await client.operation(found.operation.id)).wait(timeout=200)
            await memory.get(fully_applied=True, timeout=200)
            back = await client.import_session(before, "back")
            assert [one.text async for one in back.chunks()][1] == ""
            assert "4711" not in str((await back.memory("p").get()).value)
            await session.export(after)
            assert b"is 4711" in before.read_bytes()
            assert b"is 4711" not in after.read_bytes()
            copy = await client.import_session(after, "copy")
            await copy.export(again)
            assert content(again.read_bytes()) == content(after.read_bytes())
            tombstone = [chunk async for chunk in copy.chunks()][1]
            assert (tombstone.text, tombstone.redaction is not None) == ("", True)
            # The same request again adds nothing, as in the session itself.
            assert (await copy.append("The code of Berta is 4711.", request_id="b")).positions == (
                two.positions
            )
            assert (await copy.info()).head == 2
            # The same text anew is kept out of the copy, too.
            await copy.append("the code of BERTA is 4711", request_id="c")
            await copy.append("Something else.", request_id="d")
            assert [chunk.text async for chunk in copy.chunks(from_position=3)] == [
                "",
                "Something else.",
            ]


def resealed(file: bytes, change: Callable[[dict[str, object]], object]) -> bytes:
    """Returns a file whose records were changed, with checksums that are right again."""
    header, *lines = file.splitlines()
    writer, parts = BlockWriter(), [header + b"\n"]
    for line in lines:
        record = json.loads(line)
        if record["record"] == "check":
            kind, memory, *keys = record["after"]
            parts.append(writer.close(ExportPlace(kind=kind, memory=memory, keys=tuple(keys))))
        elif record["record"] == "end":
            parts.append(writer.end())
        else:
            change(record)
            writer.add(record)
    return b"".join(parts)


#: By what they spoil, changes of records that a checksum does not find.
FORGED: dict[str, Callable[[dict[str, object]], object]] = {
    "position": lambda r: r.update(position=99) if r.get("position") == 3 else None,
    "chunk": lambda r: r.update(kind="picture") if r.get("position") == 3 else None,
    "text": lambda r: r.update(text="other") if r.get("position") == 3 else None,
    "nul": lambda r: r.update(text="a\0b") if r.get("position") == 3 else None,
    "surrogate": lambda r: r.update(thread="\x07") if r.get("position") == 3 else None,
    "number": lambda r: r.update(producer_sequence=10**400) if r.get("position") == 3 else None,
    "float": lambda r: r.update(producer_sequence=1.0) if r.get("position") == 3 else None,
    "year": lambda r: (
        r.update(created_at="0001-01-01T00:00:00+14:00") if r.get("position") else None
    ),
    "size": lambda r: r.update(text="x" * 300_000) if r.get("position") == 3 else None,
    "unknown": lambda r: r.update(novel=1) if r.get("position") == 3 else None,
    "digest": lambda r: r.update(digest="00" * 32) if r["record"] == "revision" else None,
    "producer": lambda r: (
        r.update(last_sequence=21) if r["record"] == "producer" and r["producer_id"] else None
    ),
    "idle producer": lambda r: r.update(last_sequence=0) if r["record"] == "producer" else None,
    "order of chunks": lambda r: (
        r.update(producer_sequence=7 - int(str(r["position"])))
        if r.get("position") in (3, 4) and r["record"] == "chunk"
        else None
    ),
    "memory": lambda r: r.update(memory="q") if r["record"] == "amendment" else None,
    "amendment": lambda r: r.update(value='"forged"') if r["record"] == "amendment" else None,
    "path": lambda r: r.update(path="no path") if r["record"] == "amendment" else None,
    "spec": lambda r: r.update(spec={"novel": 1}) if r["record"] == "memory" else None,
    "kind": lambda r: r.update(kind="counter") if r["record"] == "memory" else None,
    "cursor": lambda r: r.update(revision=999) if r["record"] == "cursor" else None,
    "status": lambda r: r.update(status="broken") if r["record"] == "cursor" else None,
    "closed prism": lambda r: (
        r.update(seal_position=1) if r["record"] == "cursor" and r.get("memory") == "p" else None
    ),
    "closed after the log": lambda r: (
        r.update(seal_position=10**12)
        if r["record"] == "cursor" and r.get("memory") == "t"
        else None
    ),
    "closed nowhere": lambda r: (
        r.update(status="sealed") if r["record"] == "cursor" and r.get("memory") == "t" else None
    ),
    "read again": lambda r: r.update(reread_positions=[3, 2]) if r["record"] == "cursor" else None,
    "node": lambda r: r.update(text_tokens=1) if r["record"] == "node" else None,
    "range": lambda r: r.update(end_position=10**12) if r["record"] == "node" else None,
    "vector": lambda r: r.update(text="forged") if r["record"] == "vector" else None,
    "language": lambda r: r.update(language="klingon") if r["record"] == "session" else None,
    "retention": lambda r: r.update(retention={"a": 1}) if r["record"] == "session" else None,
    "metadata": lambda r: r.update(metadata=[1]) if r["record"] == "session" else None,
    "citation": lambda r: (
        r.update(citations=[{"position": 999}]) if r["record"] == "answer" else None
    ),
    "rating": lambda r: r.update(rating=7) if r["record"] == "rating" else None,
    "budget": lambda r: r.update(period="week") if r["record"] == "budget" else None,
    "day": lambda r: r.update(day="2026-02-31") if r["record"] == "usage" else None,
}


@pytest.mark.parametrize("what", list(FORGED))
async def test_what_is_inconsistent_is_refused_despite_its_checksums(
    database: Database, place: Place, what: str
) -> None:
    file = resealed(place.file, FORGED[what])
    assert file != place.file, "nothing was changed"
    copy = name()
    with pytest.raises(InvalidInput) as refused:
        await imported(database, file, copy)
    assert refused.value.reason is Reason.IMPORT_INVALID
    assert not await is_visible(database, copy)


def spoilt(file: bytes, random: random.Random) -> bytes:
    """Returns a file with one accident."""
    lines = file.splitlines(keepends=True)
    at = random.randrange(1, len(lines))
    line = lines[at]
    kind = random.randrange(9)
    if kind == 0:
        return file[: random.randrange(len(lines[0]), len(file) - 1)]
    if kind == 1:
        other = random.randrange(1, len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 2:
        lines.insert(at, line)
    elif kind == 3:
        del lines[at]
    elif kind == 4:
        spot = random.randrange(len(line) - 1)
        lines[at] = line[:spot] + bytes([line[spot] ^ 1 << random.randrange(8)]) + line[spot + 1 :]
    elif kind == 5:
        lines[at] = b'{"record":' + b"[" * 100_000 + b"\n"
    elif kind == 6:
        lines[at] = b'{"record":"chunk","position":' + b"9" * 10_000 + b"}\n"
    elif kind == 7:
        lines[at] = b'{"record":"chunk","text":"\xff\xfe"}\n'
    else:
        lines[at] = b'{"record":"check","line":1e999,"counts":{},"after":[],"sha256":"\\ud800"}\n'
    return b"".join(lines)


@pytest.mark.prove
@given(seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_accidents_are_found_and_nothing_is_visible(place: Place, seed: int) -> None:
    file = spoilt(place.file, random.Random(seed))

    async def check() -> None:
        database = Database.connect(place.url, pool_size=2, name="test")
        copy = name()
        try:
            if file == place.file:
                return
            with pytest.raises(InvalidInput) as refused:
                await imported(database, file, copy)
            assert refused.value.reason is Reason.IMPORT_INVALID
            assert refused.value.metadata["line"].isdecimal()
            assert not await is_visible(database, copy)
        finally:
            await database.close()

    asyncio.run(check())


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"no JSON\n", "no JSON"),
        (b"[]\n", "no JSON object"),
        (b'{"format":"other"}\n', "--from"),
        (b'{"format":"palimpsest-session","version":3}\n', "a newer one"),
        (b'{"format":"palimpsest-session","version":true}\n', "no version"),
        (b'{"format":"palimpsest-session","version":1}\n', "checksum"),
        (b"[" * 16_000 + b"\n", "too deeply"),
        (b"\xff\n", "UTF-8"),
    ],
)
async def test_a_foreign_header_is_refused(database: Database, header: bytes, said: str) -> None:
    importer = Importer(database, use_cases(), Limits())
    with pytest.raises(InvalidInput, match=said):
        await importer.open(DEFAULT_TENANT, header, name())


async def test_a_line_or_block_without_an_end_is_refused(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "MAX_LINE_BYTES", 1000)
    at = datetime.now(UTC)
    header = Header(session="s", export_id=uuid4(), exported_at=at, head=1, memories=0).to_line()
    with pytest.raises(InvalidInput, match="longer than 1,000"):
        await sent(await opened(database, header, name()), b"x" * 2000)
    size = 1024 * 1024
    importer = Importer(database, use_cases(), Limits(max_import_block_bytes=size))
    run = await importer.open(DEFAULT_TENANT, header, name())
    line = b'{"record":"chunk"}\n'
    await sent(run, line * (size // len(line)), part=size)
    with pytest.raises(InvalidInput, match="no check comes within 1,048,576 bytes"):
        await sent(run, line)


@pytest.mark.parametrize("days", [1, 30])
async def test_an_unfinished_import_is_kept_as_long_as_settings_say(
    database: Database, place: Place, days: int
) -> None:
    copy = name()
    importer = Importer(database, use_cases(), Limits(unfinished_import_days=days))
    run = await importer.open(DEFAULT_TENANT, place.file.splitlines(keepends=True)[0], copy)

    async def is_due_by(seconds: int) -> bool:
        async with database.transaction(DEFAULT_TENANT) as tx:
            query = "SELECT ready_at < now() + make_interval(secs => %s::integer) FROM removal"
            ((due,),) = await tx.fetch(
                f"{query} WHERE session_key = %s", (seconds, session_key(DEFAULT_TENANT, copy))
            )
        return bool(due)

    for _ in range(2):
        assert [await is_due_by(days * 86_400 + one) for one in (-3600, 3600)] == [False, True]
        await sent(run, after_line(place.file, run.through_line)[:-20])
    assert run.through_line > 1
