"""A database of the release before, with rows in it, is brought up to this one."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from psycopg import sql
from sqlalchemy import create_engine, text

import migrations
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prism.spec import Encoding, PrismSpec
from service.domain.tree.nodes import TextOffset
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from storage.engine.connections import sqlalchemy_url
from storage.engine.database import Database
from storage.log import chunks
from storage.memories import memories
from storage.search.chunk_text import AS_TEXT
from storage.tree import views
from tests.integration.support.scripted import Script, prism_method
from tests.integration.support.writing import append_chunks
from tests.support.harness import Servers, with_database

KEY = session_key(DEFAULT_TENANT, "s")
MEMORY = memory_id(KEY, "m")

#: What the first release wrote: a memory that has read one chunk of two.
ROWS = """
INSERT INTO session (session_key, tenant_id, name, head) VALUES (%(key)s, %(tenant)s, 's', 2);
INSERT INTO producer (session_key, producer_id, tenant_id, epoch, last_sequence)
VALUES (%(key)s, 'p', %(tenant)s, 0, 2);
INSERT INTO chunk (session_key, position, tenant_id, producer_id, producer_sequence,
    kind, role, text, observation, thought, action, digest)
SELECT %(key)s, n, %(tenant)s, 'p', n, 'text', '', 'chunk ' || n, '', '', '', ''
FROM generate_series(1, 2) AS n;
BEGIN;
INSERT INTO memory (session_key, memory_id, tenant_id, name, kind, spec, revision,
    applied_position, has_work)
VALUES (%(key)s, %(memory)s, %(tenant)s, 'm', 'prism', %(spec)s, 1, 1, true);
INSERT INTO revision (session_key, memory_id, revision, tenant_id, parent_revision,
    from_position, to_position, kind, epoch, digest)
VALUES (%(key)s, %(memory)s, 0, %(tenant)s, NULL, 0, 0, 'create', 0, ''),
    (%(key)s, %(memory)s, 1, %(tenant)s, 0, 0, 1, 'step', 1, '');
COMMIT;
INSERT INTO amendment (session_key, memory_id, revision, ordinal, tenant_id, path, op, value,
    op_corrected)
VALUES (%(key)s, %(memory)s, 1, 1, %(tenant)s, '$[''topics''][''a'']', 'add', '"x"', false);
INSERT INTO prism_base (session_key, memory_id, revision, tenant_id, value)
VALUES (%(key)s, %(memory)s, 0, %(tenant)s, '{}');
INSERT INTO prism_value (session_key, memory_id, tenant_id, revision, value)
VALUES (%(key)s, %(memory)s, %(tenant)s, 1, '{"topics":{"a":"x"}}');
"""
SPEC = """{"schema_source": "class N:\\n    topics: dict[str, str]\\n", "task": "", "question": "",
"encoding": "amendments", "chunk_tokens": 1, "model": "test/scripted", "on_failure": "stall",
"fold_tokens": 8000}"""


def upgrade_to(url: str, revision: str) -> None:
    """Brings a database up to a release before this one."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    engine = create_engine(sqlalchemy_url(url))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


@pytest.fixture
def old(servers: Servers) -> str:
    """A database of the first release; its URL."""
    name = f"old_{uuid4().hex}"
    with psycopg.connect(servers.postgres.superuser_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} OWNER palimpsest").format(sql.Identifier(name))
        )
    url = with_database(servers.postgres.url, name)
    upgrade_to(url, "0001")
    values = {"key": KEY, "memory": MEMORY, "tenant": DEFAULT_TENANT, "spec": SPEC}
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        psycopg.ClientCursor(connection).execute(ROWS, values)
    return url


async def test_a_memory_of_the_release_before_goes_on(old: str) -> None:
    assert migrations.upgrade(sqlalchemy_url(old)) == ("0001", migrations.newest())
    database = Database.connect(old, pool_size=2, name="test")
    try:
        item = WorkItem(
            kind=WorkKind.MEMORY, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=MEMORY
        )
        await prism_method(database, Script()).drain(item)
        async with database.transaction(DEFAULT_TENANT) as tx:
            stored = await memories.get(tx, KEY, MEMORY)
    finally:
        await database.close()
    assert stored is not None
    assert (stored.revision, stored.applied_position) == (2, 2)
    assert stored.prism.encoding is Encoding.AMENDMENTS


#: As the release before 0016 appends a lone step, with what it saw of the session and the producer.
APPEND_OF_BEFORE = """
SELECT applied FROM append_if_unchanged(%(key)s, %(head)s, 1, 'p', 0, %(head)s,
    ARRAY['step'], ARRAY[''], ARRAY[''], ARRAY[%(seen)s], ARRAY[%(thought)s], ARRAY[%(done)s],
    ARRAY[NULL]::jsonb[], ARRAY[%(digest)s]::bytea[], 1)
"""


async def test_steps_of_the_release_before_read_as_they_were_cited(
    servers: Servers, old: str
) -> None:
    step = Chunk(
        kind=ChunkKind.STEP,
        observation="In the drawer lies a note: 417.",
        thought="It is for a lock.",
        action="take note",
        observed_first=None,
    )
    values = {
        "key": KEY,
        "seen": step.observation,
        "thought": step.thought,
        "done": step.action,
        "digest": step.digest(),
    }

    def append(head: int) -> None:
        with psycopg.connect(servers.as_superuser(old), autocommit=True) as connection:
            assert connection.execute(APPEND_OF_BEFORE, {**values, "head": head}).fetchone()

    upgrade_to(old, "0015")
    append(2)
    migrations.upgrade(sqlalchemy_url(old))
    # It goes on for a while beside this one.
    append(3)
    database = Database.connect(old, pool_size=2, name="test")
    try:
        again = Chunk(kind=ChunkKind.STEP, observation="a", thought="b", action="c")
        ack = await append_chunks(database, "s", [again], first=5)
        async with database.transaction(DEFAULT_TENANT) as tx:
            found = await chunks.read(tx, KEY, 2, 10)
            texts = await chunks.read_texts(tx, KEY, [(2, 5)])
            ranges = await chunks.read_ranges(tx, KEY, [(2, 5)], 1_000)
            leaf = await views.read_text(tx, KEY, TextOffset(3, 45), TextOffset(6), 1_000)
            said = await tx.connection.execute(
                text(f"SELECT {AS_TEXT} FROM chunk c WHERE position > 2 ORDER BY position")
            )
            in_sql = list(said.scalars())
    finally:
        await database.close()
    assert ack.position == 5
    assert [one.chunk for one in found] == [step, step, again]
    assert all(one.chunk.digest() == step.digest() for one in found[:2])
    # What a citation of characters 13 to 44 and a leaf that begins at 45 stood for.
    assert (texts[3][13:44], texts[4][45:]) == (
        step.observation,
        "Thought: It is for a lock.\nAction: take note",
    )
    assert [one.text for one in leaf] == [texts[3][45:], texts[4], texts[5]]
    assert texts[5] == "Thought: b\nAction: c\nObservation: a"
    assert in_sql == [texts[position] for position in (3, 4, 5)]
    assert in_sql == [one.chunk.as_text() for one in ranges[2]]


def test_what_a_new_process_writes_by_default_the_release_before_can_read() -> None:
    """It refuses fields that it does not know: those at their defaults are left out."""
    first = {"schema_source", "task", "question", "encoding", "chunk_tokens", "model"}
    first |= {"on_failure", "fold_tokens"}
    assert PrismSpec(schema_source="class N:\n    a: int\n").to_json().keys() == first


def test_migrations_at_once_wait_for_each_other(old: str) -> None:
    outcomes: list[object] = []

    def migrate() -> None:
        try:
            outcomes.append(migrations.upgrade(sqlalchemy_url(old))[1])
        except Exception as error:
            # Shown by the assertion below; in a thread it would be lost.
            outcomes.append(error)

    threads = [threading.Thread(target=migrate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [migrations.newest()] * 3


def test_a_migration_that_was_cut_off_runs_again(servers: Servers, old: str) -> None:
    # Behind it `spend` is a view, which those before take for a table.
    upgrade_to(old, "0024")
    with psycopg.connect(servers.as_superuser(old), autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
        connection.execute("DROP INDEX amendment_by_path")
        connection.execute("DROP TABLE schema_draft")
        connection.execute("ALTER TABLE call ALTER memory_id SET NOT NULL")
        assert migrations.upgrade(sqlalchemy_url(old)) == ("0001", migrations.newest())
        connection.execute("UPDATE alembic_version SET version_num = '0024'")
    assert migrations.upgrade(sqlalchemy_url(old)) == ("0024", migrations.newest())
    engine = create_engine(sqlalchemy_url(old))
    with engine.connect() as connection:
        assert migrations.differences(connection) == []
    engine.dispose()


#: Two calls of yesterday, one of them failed, and one of today without a price.
CALLS = """
INSERT INTO call (session_key, call_id, tenant_id, memory_id, occasion, key, purpose, template,
    model, reply, failure, input_tokens, predicted_cached_tokens, reported_cached_tokens,
    cache_write_tokens, output_tokens, cost_micro_usd, latency_ms, created_at)
SELECT %(key)s, gen_random_uuid(), %(tenant)s, %(memory)s, '', reply::bytea, 'revise', 't/1', 'm',
    nullif(reply, 'none'), CASE reply WHEN 'none' THEN 'it failed' END, input, 0, NULL, NULL, 1,
    cost, 1, now() - days * interval '1 day'
FROM (VALUES ('a', 5, 7, 1), ('none', 0, NULL, 1), ('b', 6, NULL, 0))
    AS c (reply, input, cost, days);
"""
SPENT = """
SELECT sum(calls), sum(failed_calls), sum(input_tokens), sum(output_tokens),
    sum(cost_micro_usd), sum(unpriced_calls), count(DISTINCT day) FROM spend
"""


def test_calls_of_the_release_before_are_counted_while_it_runs(servers: Servers, old: str) -> None:
    values = {"key": KEY, "memory": MEMORY, "tenant": DEFAULT_TENANT}
    upgrade_to(old, "0003")
    outcomes: list[object] = []

    def migrate() -> None:
        try:
            outcomes.append(migrations.upgrade(sqlalchemy_url(old))[1])
        except Exception as error:
            # Shown by the assertion below; in a thread it would be lost.
            outcomes.append(error)

    waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'call'::regclass"
    with (
        psycopg.connect(servers.as_superuser(old), autocommit=True) as watching,
        psycopg.connect(servers.as_superuser(old)) as writing,
    ):
        # As a statement begins that writes calls: then it looks for their memories.
        writing.execute("LOCK TABLE call IN ROW EXCLUSIVE MODE")
        thread = threading.Thread(target=migrate)
        thread.start()
        while watching.execute(waits).fetchone() is None and thread.is_alive():
            time.sleep(0.02)
        # The migration waits for this one, and keeps no memory locked meanwhile.
        writing.execute("SET lock_timeout = '1s'")
        psycopg.ClientCursor(writing).execute(CALLS, values)
        writing.commit()
        thread.join()
        assert outcomes == [migrations.newest()]
        assert watching.execute(SPENT).fetchone() == (2, 1, 11, 3, 7, 1, 2)
        policies = "SELECT policyname FROM pg_policies WHERE tablename = 'call' ORDER BY 1"
        kept = [("call_blanked",), ("call_of_tenant",), ("call_removed",)]
        assert watching.execute(policies).fetchall() == kept
        forced = "SELECT relname FROM pg_class WHERE relrowsecurity AND NOT relforcerowsecurity"
        assert watching.execute(forced).fetchall() == []


def test_an_index_waits_for_whoever_reads_for_long(servers: Servers, old: str) -> None:
    outcomes: list[object] = []

    def migrate() -> None:
        try:
            outcomes.append(migrations.upgrade(sqlalchemy_url(old))[1])
        except Exception as error:
            # Shown by the assertion below; in a thread it would be lost.
            outcomes.append(error)

    upgrade_to(old, "0004")
    with psycopg.connect(servers.as_superuser(old)) as reading:
        reading.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reading.execute("SELECT 1 FROM deployment")
        thread = threading.Thread(target=migrate)
        thread.start()
        # Longer than a migration waits for a lock that keeps others waiting.
        thread.join(timeout=6)
        assert outcomes == []
        reading.rollback()
        thread.join()
    assert outcomes == [migrations.newest()]


def test_the_schema_of_a_newer_release_is_left_as_it_is(servers: Servers) -> None:
    url = servers.new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        # As when an older release is deployed again, and migrates before it starts.
        done = subprocess.run(
            [sys.executable, "-m", "service.cli", "migrate"],
            env={**os.environ, "PALIMPSEST_DATABASE_URL": url},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "at 9999, of a newer release, and left there: this one works on it\n"
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [
            ("9999",)
        ]
