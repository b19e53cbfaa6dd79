"""A database is migrated: an empty one, one that is there, and one of another release."""

import os
import subprocess
import threading
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from alembic.config import Config as AlembicConfig
from alembic.script import ScriptDirectory
from psycopg import sql
from pydantic import SecretStr
from sqlalchemy import create_engine, text
from sqlalchemy.exc import ProgrammingError

import migrations
from service.app.foundation import CannotStart, database_and_keys
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.operations.doctor import Severity
from service.domain.prism.spec import Encoding, PrismSpec
from service.domain.tree.nodes import TextOffset
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Config
from service.usecases.operations.doctor import Doctor, Migrations
from storage.engine.connections import sqlalchemy_url
from storage.engine.database import Database
from storage.log import chunks
from storage.memories import memories
from storage.search.chunk_text import AS_TEXT
from storage.tree import views
from tests.integration.support.scripted import Script, prism_method
from tests.integration.support.writing import append_chunks
from tests.support import forking
from tests.support.harness import Servers, with_database

KEY = session_key(DEFAULT_TENANT, "s")
MEMORY = memory_id(KEY, "m")

#: A memory that has read one chunk of two, with as few columns as there can be.
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

TABLES = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"


@pytest.fixture
def empty(servers: Servers) -> str:
    """Returns a database without a table; its URL."""
    name = f"empty_{uuid4().hex}"
    with psycopg.connect(servers.postgres.superuser_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} OWNER palimpsest").format(sql.Identifier(name))
        )
    return with_database(servers.postgres.url, name)


@pytest.fixture
def stored(servers: Servers, url: str) -> str:
    """Returns a database with `ROWS`; its URL."""
    values = {"key": KEY, "memory": MEMORY, "tenant": DEFAULT_TENANT, "spec": SPEC}
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        psycopg.ClientCursor(connection).execute(ROWS, values)
    return url


def migrate(url: str) -> "subprocess.CompletedProcess[str]":
    variables = {**os.environ, "PALIMPSEST_DATABASE_URL": url}
    return forking.run(("migrate",), environment=variables, seconds=200)


def test_revisions_are_four_digits_one_after_the_other() -> None:
    config = AlembicConfig()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    walked = [*ScriptDirectory.from_config(config).walk_revisions()][::-1]
    names = [one.revision for one in walked]
    assert names[0] == "0033", "the schema of version 1"
    assert names == sorted(names)
    assert all(len(name) == 4 and name.isdecimal() for name in names)
    assert [one.down_revision for one in walked] == [None, *names[:-1]]
    assert migrations.known() == {*names}


def test_an_empty_database_gets_the_tables(servers: Servers, empty: str) -> None:
    assert migrations.upgrade(sqlalchemy_url(empty)) == (None, migrations.newest())
    engine = create_engine(sqlalchemy_url(empty))
    with engine.connect() as connection:
        assert migrations.differences(connection) == []
    engine.dispose()
    with psycopg.connect(servers.as_superuser(empty)) as connection:
        unforced = "SELECT relname FROM pg_class WHERE relrowsecurity AND NOT relforcerowsecurity"
        assert connection.execute(unforced).fetchall() == []
    assert migrations.upgrade(sqlalchemy_url(empty)) == (migrations.newest(),) * 2


def test_migrations_at_once_wait_for_each_other(empty: str) -> None:
    outcomes: list[object] = []

    def upgrade() -> None:
        try:
            outcomes.append(migrations.upgrade(sqlalchemy_url(empty)))
        except Exception as error:
            # Shown by the assertion below; in a thread it would be lost.
            outcomes.append(error)

    threads = [threading.Thread(target=upgrade) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    newest = migrations.newest()
    assert outcomes == [(None, newest), (newest, newest), (newest, newest)]


def test_the_first_migration_leaves_nothing_when_it_is_interrupted(empty: str) -> None:
    with psycopg.connect(empty, autocommit=True) as connection:
        # One of the last that it creates.
        connection.execute("CREATE TABLE wanted ()")
        with pytest.raises(ProgrammingError, match='relation "wanted" already exists'):
            migrations.upgrade(sqlalchemy_url(empty))
        connection.execute("DROP TABLE wanted")
        assert connection.execute(TABLES).fetchone() == (0,)
    assert migrations.upgrade(sqlalchemy_url(empty)) == (None, migrations.newest())


def test_the_schema_of_a_newer_release_is_left_as_it_is(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        # As when an older release is deployed again, and migrates before it starts.
        done = migrate(url)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "at 9999, of a newer release, and left there: this one works on it\n"
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [
            ("9999",)
        ]


async def test_a_database_of_before_version_1_is_refused(url: str) -> None:
    said = (
        "this database is of a release before version 1 (revision 0012), which is not migrated:"
        " begin with an empty database"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0012'")
        done = migrate(url)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"cannot migrate: {said}" in " ".join(done.stderr.split())
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [
            ("0012",)
        ]
    config = Config(database_url=SecretStr(url))
    with pytest.raises(CannotStart) as refused:
        async with database_and_keys(config, "serve"):
            pass
    assert str(refused.value) == said
    known = Migrations(newest=migrations.newest(), known=migrations.known())
    found = {one.name: one async for one in Doctor(config, known).findings()}
    assert found["migrations"].level is Severity.BAD
    assert (
        found["migrations"].said == "at 0012, of a release before version 1, which is not migrated"
    )
    assert "memories" not in found, "nothing else of it is read"


async def test_a_memory_with_no_more_than_it_needs_goes_on(stored: str) -> None:
    database = Database.connect(stored, pool_size=2, name="test")
    try:
        item = WorkItem(
            kind=WorkKind.MEMORY, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=MEMORY
        )
        await prism_method(database, Script()).drain(item)
        async with database.transaction(DEFAULT_TENANT) as tx:
            found = await memories.get(tx, KEY, MEMORY)
    finally:
        await database.close()
    assert found is not None
    assert (found.revision, found.applied_position) == (2, 2)
    assert PrismSpec.of(found).encoding is Encoding.AMENDMENTS


#: Appends a lone step whose order is not said.
APPEND = """
SELECT applied FROM write_if_unchanged(%(key)s, 2, 1, 'p', 0, 2,
    ARRAY['step'], ARRAY[''], ARRAY[''], ARRAY[%(seen)s], ARRAY[%(thought)s], ARRAY[%(done)s],
    ARRAY[NULL]::jsonb[], ARRAY[%(digest)s]::bytea[], 1, NULL, NULL, NULL, NULL)
"""


async def test_a_step_without_an_order_reads_as_it_is_cited(servers: Servers, stored: str) -> None:
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
    with psycopg.connect(servers.as_superuser(stored), autocommit=True) as connection:
        assert connection.execute(APPEND, values).fetchone()
    database = Database.connect(stored, pool_size=2, name="test")
    try:
        again = Chunk(kind=ChunkKind.STEP, observation="a", thought="b", action="c")
        ack = await append_chunks(database, "s", [again], first=4)
        async with database.transaction(DEFAULT_TENANT) as tx:
            found = await chunks.read(tx, KEY, 2, 10)
            texts = await chunks.read_texts(tx, KEY, [(2, 4)])
            ranges = await chunks.read_ranges(tx, KEY, [(2, 4)], 1_000)
            leaf = await views.read_text(tx, KEY, TextOffset(3, 45), TextOffset(5), 1_000)
            said = await tx.fetch(
                text(f"SELECT {AS_TEXT} FROM chunk c WHERE position > 2 ORDER BY position")
            )
            in_sql = [one for (one,) in said]
    finally:
        await database.close()
    assert ack.position == 4
    assert [one.chunk for one in found] == [step, again]
    assert found[0].chunk.digest() == step.digest()
    # What a citation of characters 13 to 44 and a leaf that begins at 45 refer to.
    assert (texts[3][13:44], texts[3][45:]) == (
        step.observation,
        "Thought: It is for a lock.\nAction: take note",
    )
    assert [one.text for one in leaf] == [texts[3][45:], texts[4]]
    assert texts[4] == "Thought: b\nAction: c\nObservation: a"
    assert in_sql == [texts[position] for position in (3, 4)]
    assert in_sql == [one.chunk.as_text() for one in ranges[2]]


def test_what_a_new_process_writes_by_default_the_release_before_can_read() -> None:
    """It refuses fields that it does not know: those at their defaults are left out."""
    first = {"schema_source", "task", "question", "encoding", "chunk_tokens", "model"}
    first |= {"on_failure", "fold_tokens"}
    assert PrismSpec(schema_source="class N:\n    a: int\n").to_json().keys() == first
