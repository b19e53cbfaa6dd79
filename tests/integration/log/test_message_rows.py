"""What a message that is appended, applied and indexed writes to the database, and how often."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem, WorkKind
from service.usecases.search.index import Indexer
from storage.engine.database import Database
from tests.integration.support.scripted import CONFIG, ITEM, KEY, Script, make, prism_method
from tests.integration.support.writing import append_texts
from tests.support.harness import Servers

MESSAGES = 20
#: Nothing is counted before: plans, connections, first versions of rows.
FIRST = 5
#: Records of the write-ahead log for a message, locks of rows among them: 54, and some more where
#: a page of an index is full. So they become no more unseen. One is of call_with_text, by which
#: retention finds texts of calls.
MOST_RECORDS = 60
#: Statements of a worker for a message, BEGIN and COMMIT among them: 30. They were 42.
MOST_STATEMENTS = 34

# Of our tables alone: the server analyzes and cleans when it likes.
_RECORDS = """
SELECT count(*) FROM pg_get_wal_records_info(%(begun)s, %(ended)s) w
JOIN pg_get_wal_block_info(%(begun)s, %(ended)s, false) b
    ON b.start_lsn = w.start_lsn AND b.block_id = 0
JOIN pg_class c ON pg_relation_filenode(c.oid) = b.relfilenode
WHERE c.relnamespace = 'public'::regnamespace
    AND b.reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND w.record_type NOT LIKE 'PRUNE%%' AND w.record_type NOT LIKE 'VACUUM%%'
"""
_CONNECTED = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
_UPDATES = """
SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
WHERE relname IN ('producer', 'prism_value', 'call_sum')
"""


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yields the statements that are sent meanwhile."""
    execute = psycopg.AsyncCursor.execute
    sent: list[str] = []

    async def counting(self: Any, query: Any, *arguments: Any, **named: Any) -> Any:
        sent.append(str(query))
        return await execute(self, query, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.AsyncCursor, "execute", counting)
        yield sent


async def message(database: Database, number: int) -> None:
    """Appends a message, and has it applied and indexed."""
    await append_texts(database, "s", [f"message {number}"], first=number)
    await work(database, number)


async def work(database: Database, number: int) -> None:
    """Does what workers do for a message."""
    op, section = ("add", "ADD") if number == 1 else ("update", "UPDATE")
    said = f'[OBJECTS FOR {section}]\n{{"$.topics.t1": {{"{op}": "said {number}"}}}}'
    await prism_method(database, Script(reply=lambda ask, _: said)).drain(ITEM)
    item = WorkItem(kind=WorkKind.INDEX, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=KEY)
    await Indexer(database, None, CONFIG).index(item)


async def test_a_message_writes_no_more_than_it_must(
    servers: Servers, url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(database, [])
    for number in range(1, FIRST + 1):
        await message(database, number)
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")

        def one(query: str, values: Any = None) -> Any:
            row = connection.execute(query, values).fetchone()
            assert row is not None
            return row[0]

        begun = one("SELECT pg_current_wal_insert_lsn()")
        with counted(monkeypatch) as sent:
            for number in range(FIRST + 1, FIRST + MESSAGES + 1):
                await append_texts(database, "s", [f"message {number}"], first=number)
                appended = len(sent)
                await work(database, number)
                assert len(sent) - appended <= MOST_STATEMENTS, sent[appended:]
        # What did not wait for the disk is there after this.
        connection.execute("CREATE TABLE flushed (n int)")
        ended = one("SELECT pg_current_wal_flush_lsn()")
        # PostgreSQL 15 does not report which tables they are about.
        tells = connection.info.server_version >= 160000
        records = one(_RECORDS, {"begun": begun, "ended": ended}) if tells else 0
        await database.close()
        # A connection counts what it did as it ends.
        while one(_CONNECTED):
            await asyncio.sleep(0.05)
        updates = {name: (all_, hot) for name, all_, hot in connection.execute(_UPDATES)}
    assert records / MESSAGES <= MOST_RECORDS
    assert updates.keys() == {"producer", "prism_value", "call_sum"}
    for name, (number, hot) in updates.items():
        assert number >= MESSAGES, name
        assert hot >= number * 0.8, f"{name}: {hot} of {number} updates were HOT"
