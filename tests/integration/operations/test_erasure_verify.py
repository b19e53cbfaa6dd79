"""A verification finds what an eraser has left, wherever it is, and nothing where nothing is."""

import base64
import errno
import gzip
import io
import os
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import psycopg
import pytest
import redis

from service.domain.log.erasures import Erasure, ErasureKind
from service.domain.log.receipts import NotAReceipt, Receipt, body_of, from_json, to_json
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem, WorkKind
from service.local.binaries import find_postgres
from service.usecases.log import sessions
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations.deleting import Deleter
from service.usecases.operations.erasure_scan import ScannedPlace, Scanner
from service.usecases.operations.erasure_verify import ScanTargets, verify
from service.usecases.operations.signing import check_signature, sign
from service.usecases.search.index import Indexer
from storage.engine.database import Database
from storage.engine.errors import StorageError
from storage.log import deleting, erasures
from storage.operations import raw_scan
from storage.operations.raw_scan import CannotScan
from tests.integration.support.scripted import (
    CONFIG,
    ITEM,
    KEY,
    MEMORY,
    Script,
    answerer,
    make,
    prism_method,
    read,
)
from tests.integration.support.stored_answers import store_question
from tests.integration.support.writing import append_texts, drop_wake_ups
from tests.support import gateways
from tests.support.harness import Servers

SECRET = "the vault opens to marzipan-4471-quartz"
TWIN = "the twin keeps pelican-9902-cobalt"
PG_DUMP = str(find_postgres() / "pg_dump")


def targets(servers: Servers, url: str, **more: Any) -> ScanTargets:
    return ScanTargets(database_url=servers.as_superuser(url), pg_dump=PG_DUMP, **more)


def topic(_: object, number: int) -> str:
    return f'[OBJECTS FOR ADD]\n{{"$.topics.t{number}": {{"add": "{SECRET}"}}}}'


async def filled(database: Database) -> None:
    """Makes two sessions: `s` has the secret in its log, a memory, an answer and calls."""
    await make(database, [SECRET, "b", "c"])
    script = Script(reply=topic)
    await prism_method(database, script).drain(ITEM)
    await Indexer(database, None, CONFIG).index(
        WorkItem(kind=WorkKind.INDEX, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=KEY)
    )
    stored = await read(database)
    question = await store_question(
        database, MEMORY, f"what is {SECRET}?", revision=stored.revision, applied_position=3
    )
    await answerer(database, gateways.gateway(script, database)).make(question)
    await sessions.create(database, DEFAULT_TENANT, "twin", language="english")
    await append_texts(database, "twin", [TWIN])


async def erase(database: Database) -> Receipt:
    deleter = Deleter(database, WakeUps(drop_wake_ups))
    await deleter.delete_session(DEFAULT_TENANT, "s", allow_missing=False)
    return await receipt_of(database)


async def rows_of(database: Database, table: str) -> int:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(deleting.REMOVING)
        query = f"SELECT count(*) FROM {table} WHERE session_key = %s"
        ((count,),) = await tx.fetch(query, (KEY,))
    return int(count)


async def receipt_of(database: Database) -> Receipt:
    async with database.transaction(DEFAULT_TENANT) as tx:
        (erasure,) = await erasures.list_after(tx, None, 10)
        seed = (await erasures.keys(tx)).signing
    if not erasure.is_complete:
        erasure = replace(erasure, completed_at=erasure.requested_at)
    return sign(body_of(erasure), seed)


def scanned(places: Iterable[ScannedPlace]) -> dict[str, ScannedPlace]:
    return {one.name: one for one in places}


def found(receipt: Receipt, text: str | None, where: ScanTargets) -> ScannedPlace:
    return scanned(verify(receipt, text, where))["database dump"]


@pytest.fixture
async def fresh(servers: Servers) -> AsyncIterator[tuple[str, Database]]:
    url = servers.new_database()
    database = Database.connect(url, pool_size=2, name="test")
    yield url, database
    await database.close()


async def test_what_was_erased_is_found_nowhere_and_its_twin_is(
    servers: Servers, fresh: tuple[str, Database]
) -> None:
    url, database = fresh
    await filled(database)
    receipt = await erase(database)
    where = targets(servers, url)
    place = found(receipt, SECRET, where)
    assert place.passed
    assert place.bytes > 10_000
    assert not place.notes
    assert found(receipt, TWIN, where).left == {"chunk: the text as UTF-8": 1}


async def test_before_the_erasure_every_table_with_the_text_is_named(
    servers: Servers, fresh: tuple[str, Database]
) -> None:
    url, database = fresh
    await filled(database)
    for_later = Database.connect(servers.new_database(), pool_size=1, name="other")
    await make(for_later, [SECRET])
    receipt = await erase(for_later)
    await for_later.close()
    # The rows of a session have the same keys in both databases; the keys of tenants differ.
    async with database.transaction(DEFAULT_TENANT) as tx:
        seed = (await erasures.keys(tx)).signing
    with pytest.raises(NotAReceipt, match="another key"):
        found(receipt, SECRET, targets(servers, url))
    place = found(sign(receipt.body, seed), SECRET, targets(servers, url))
    tables = {name.partition(":")[0] for name in place.left}
    assert {"chunk", "amendment", "prism_value", "call", "answer", "memory_entry"} <= tables


@pytest.mark.prove
async def test_an_eraser_that_skips_any_table_does_not_pass(
    servers: Servers, fresh: tuple[str, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows teeth: each table in turn is left out, and either the database or the scan objects."""
    await filled(fresh[1])
    whole = deleting._SESSION_STAGES
    noticed: dict[str, str] = {}
    for stage in [one for one in whole if await rows_of(fresh[1], one.name)]:
        url = servers.new_database()
        database = Database.connect(url, pool_size=2, name="test")
        await filled(database)
        kept = tuple(one for one in whole if one is not stage)
        monkeypatch.setattr(deleting, "_SESSION_STAGES", kept)
        try:
            receipt = await erase(database)
        except StorageError:
            noticed[stage.name] = "foreign key"
        else:
            place = found(receipt, None, targets(servers, url))
            left = await rows_of(database, stage.name)
            noticed[stage.name] = "scan" if place.left else f"not at all: {left}"
        await database.close()
    # The entries of a memory go with it, whatever an eraser leaves out.
    assert noticed.pop("memory_entry") == "not at all: 0"
    assert set(noticed.values()) == {"scan", "foreign key"}, noticed
    assert len(noticed) >= 9


async def test_a_text_is_recognized_by_its_digest_alone(
    servers: Servers, fresh: tuple[str, Database]
) -> None:
    url, database = fresh
    await filled(database)
    receipt = await erase(database)
    assert SECRET not in to_json(receipt)
    await append_texts(database, "twin", [SECRET], first=2)
    place = found(receipt, None, targets(servers, url))
    assert not place.left, "another session may have the same text"
    assert place.notes == {"chunk: a removed text, by its digest, of others": 1}
    assert found(receipt, SECRET, targets(servers, url)).left, "unless the text itself must go"


async def test_a_session_of_the_same_name_is_not_taken_for_the_old_one(
    servers: Servers, fresh: tuple[str, Database]
) -> None:
    url, database = fresh
    await filled(database)
    receipt = await erase(database)
    await sessions.create(database, DEFAULT_TENANT, "s", language="english")
    await append_texts(database, "s", ["something else"])
    place = found(receipt, SECRET, targets(servers, url))
    assert place.passed
    assert place.notes["chunk: rows, of a later session"] == 1


def test_receipts_that_were_changed_are_refused(tmp_path: Path) -> None:
    receipt = sign(body_of(an_erasure()), bytes(32))
    check_signature(from_json(to_json(receipt)))
    assert from_json(to_json(receipt)) == receipt
    for changed in (
        replace(receipt, body={**receipt.body, "removed": {"chunk": 9}}),
        replace(receipt, public_key=bytes(32)),
        replace(receipt, signature=b"short"),
    ):
        with pytest.raises(NotAReceipt, match="changed"):
            check_signature(changed)
    for text in ("", "{}", "[]", "null", '{"receipt": 1}', "[" * 100_000, "x" * 5_000_000):
        with pytest.raises(NotAReceipt):
            from_json(text)


def an_erasure() -> Erasure:
    from datetime import UTC, datetime

    at = datetime(2026, 11, 27, tzinfo=UTC)
    return Erasure(
        tenant_id=DEFAULT_TENANT,
        erasure_id=UUID(int=1),
        kind=ErasureKind.SESSION,
        target_session=KEY,
        target_item=KEY,
        principal="local",
        reason="",
        requested_at=at,
        completed_at=at,
        journalled_at=None,
        is_replayed=False,
        counts={"chunk": 3},
        digests=b"d" * 32,
        digests_omitted=0,
    )


def scanner(text: str = SECRET) -> Scanner:
    from service.domain.operations.encodings import needles

    return Scanner(sign(body_of(an_erasure()), bytes(32)), needles(text), None)


def test_files_are_scanned_across_blocks_and_compression(tmp_path: Path) -> None:
    secret = SECRET.encode()
    padding = b"x" * (1024 * 1024 - 10)
    (tmp_path / "across").write_bytes(padding + secret + padding)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(padding + base64.b64encode(b"." + secret)))
    (tmp_path / "clean").write_bytes(padding)
    files = sorted(tmp_path.iterdir())
    place = scanner().files("folder", tmp_path, [*files, tmp_path / "gone"])
    assert set(place.left) == {"across: the text as UTF-8", "packed.gz: the text as base64"}
    assert not place.passed


def test_redis_is_scanned_by_type(servers: Servers) -> None:
    from storage.operations.raw_scan import redis_bytes

    url = servers.valkey.url
    with redis.Redis.from_url(url) as client:
        client.set("a", b"." * (2**20 - 5) + SECRET.encode())
        client.hset("h", SECRET, "v")
        client.rpush("l", *["x"] * 501, SECRET)
        client.sadd("s", SECRET)
        client.zadd("z", {SECRET: 1})
        client.xadd("x", {"f": SECRET})
        client.set(SECRET, "v")
        try:
            place = scanner().values("Redis", redis_bytes(url))
        finally:
            client.delete("a", "h", "l", "s", "z", "x", SECRET)
    kinds = {name.partition(":")[0] for name in place.left}
    assert kinds == {"string", "hash", "list", "set", "zset", "stream", "key"}
    assert not scanner().values("Redis", redis_bytes(url)).left


def test_a_plain_dump_is_read_from_a_file(tmp_path: Path) -> None:
    dump = tmp_path / "dump.sql"
    lines = (
        "COPY public.chunk (session_key, text) FROM stdin;",
        f"{KEY}\t{SECRET}",
        "\\.",
        "-- PostgreSQL database dump complete",
    )
    dump.write_text("\n".join(lines))
    receipt = sign(body_of(an_erasure()), bytes(32))
    places = scanned(verify(receipt, SECRET, ScanTargets(dump=dump)))
    assert places["texts by their digests"].skipped, "their key is in the database"
    assert places[str(dump)].left == {"chunk: the text as UTF-8": 1, "chunk: rows": 1}
    assert places["Redis"].skipped
    with pytest.raises(CannotScan, match="cannot read"):
        scanned(verify(receipt, None, ScanTargets(dump=tmp_path / "none")))
    whole = dump.read_bytes()
    # Cut, of another database, of another format, and with the mark of its end in a text.
    in_text = whole[: whole.index(b"\\.\n")] + b"-- PostgreSQL database dump complete\n"
    for broken in (b"", whole[:-1], whole.replace(b".chunk", b".mail"), b"PGDMP\1", in_text):
        with pytest.raises(CannotScan, match=r"not a whole plain one .* --format=plain"):
            scanner().dump("broken", io.BytesIO(broken))


def test_what_stays_of_a_deleted_tenant_is_not_left(tmp_path: Path) -> None:
    deleted = replace(an_erasure(), kind=ErasureKind.TENANT, target_session=None, target_item=None)
    receipt = sign(body_of(deleted), bytes(32))
    stays = ("tenant", "tenant_key", "audit_event", "audit_head", "erasure", "tenant_turn")
    dump = tmp_path / "dump.sql"
    for tables, left in ((stays, {}), ((*stays, "api_key"), {"api_key: rows": 1})):
        rows = "".join(
            f"COPY public.{one} (tenant_id) FROM stdin;\n{DEFAULT_TENANT}\n\\.\n" for one in tables
        )
        log = "COPY public.chunk (session_key) FROM stdin;\n\\.\n"
        dump.write_text(f"{rows}{log}-- PostgreSQL database dump complete\n")
        assert scanned(verify(receipt, None, ScanTargets(dump=dump)))[str(dump)].left == left


def test_a_dump_that_fails_says_why() -> None:
    with (
        pytest.raises(CannotScan, match="pg_dump failed: no output"),
        raw_scan.dumping("/bin/false", "postgresql://127.0.0.1:1/none") as file,
    ):
        scanner().dump("database dump", file)


def test_files_that_cannot_be_read_to_their_end_are_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = gzip.compress(os.urandom(5000))
    receipt = sign(body_of(an_erasure()), bytes(32))
    target = tmp_path / "folder"
    targets = ScanTargets(folders=(target,))
    with pytest.raises(CannotScan, match=r"cannot read .*folder to its end: no such file"):
        scanned(verify(receipt, SECRET, targets))
    target.mkdir()
    for broken in (packed[:-9], packed[:2000], packed[:12] + b"?" * 99, packed[:4], packed + b"?"):
        (target / "one").write_bytes(broken)
        with pytest.raises(CannotScan, match=r"cannot read .*one to its end: "):
            scanned(verify(receipt, SECRET, targets))
    (target / "one").write_bytes(gzip.compress(b"nothing"))
    assert scanned(verify(receipt, SECRET, targets))[str(target)].passed
    with pytest.raises(CannotScan, match=r"cannot read .*one to its end: not a directory"):
        scanned(verify(receipt, SECRET, ScanTargets(folders=(target / "one",))))
    denied = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(Path, "open", Mock(side_effect=denied))
    with pytest.raises(CannotScan, match=r"cannot read .*one to its end: permission denied"):
        scanned(verify(receipt, SECRET, targets))


def test_a_database_that_cannot_be_read_is_no_pass(servers: Servers) -> None:
    receipt = sign(body_of(an_erasure()), bytes(32))
    url = "postgresql://nobody:wrong@127.0.0.1:1/none"
    with pytest.raises(CannotScan):
        scanned(verify(receipt, None, ScanTargets(database_url=url, pg_dump=PG_DUMP)))
    with pytest.raises(psycopg.Error), psycopg.connect(url, connect_timeout=1):
        pass


@pytest.mark.prove
async def test_what_remains_on_the_disk_goes_when_tables_are_rewritten(
    servers: Servers, fresh: tuple[str, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of tables and the write-ahead log; samples of texts in the planner's statistics."""
    url, database = fresh
    secret = f"the vault opens to {uuid4().hex}"
    monkeypatch.setitem(globals(), "SECRET", secret)
    superuser = servers.as_superuser(url)
    folder = servers.postgres._cluster

    def left() -> dict[str, int]:
        parts = {"base": [*folder.glob("base/**/*")], "pg_wal": [*folder.glob("pg_wal/*")]}
        scan = scanner(secret)
        return {
            name: sum(scan.files(name, folder, filter(Path.is_file, paths)).left.values())
            for name, paths in parts.items()
        }

    await filled(database)
    with psycopg.connect(superuser, autocommit=True) as connection:
        connection.execute("ANALYZE")
        connection.execute("CHECKPOINT")
        samples = connection.execute(
            "SELECT tablename, attname FROM pg_stats"
            " WHERE most_common_vals::text LIKE %(s)s OR histogram_bounds::text LIKE %(s)s",
            {"s": f"%{secret}%"},
        ).fetchall()
        assert samples == []
        receipt = await erase(database)
        connection.execute("CHECKPOINT")
        before = left()
        assert min(before.values()) > 0, "only SQL forgets at once"
        rewritten = targets(servers, url, rewrite=True)
        assert found(receipt, secret, rewritten).passed
        assert left() == {"base": 0, "pg_wal": 0}
