"""Measures what it saves, and costs appends meanwhile, to thin the history of a memory.

A memory of some 100 entries has `--revisions` revisions over 30 days that ended a month ago: each
replaces 200 characters of an entry, half of them one of 10 entries; after each 50 a fold writes a
base, as prompts need it. Retention
runs as in a worker, while a client appends to the session and to another one. `value` is the
history's bytes after it, divided by those before, of rows and without indexes. Besides, how long it
took, and the times of appends, divided by those without it in the same run.
"""

import argparse
import asyncio
import hashlib
import time
from typing import Any

import psycopg

from service.app.kinds import memories_of, use_cases
from service.domain.operations.retention import Retention
from service.domain.prism.spec import PrismSpec
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Config, Limits
from service.usecases.log import sessions
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.edit import Edit, Editor, Target
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.operations.retention import Retainer
from service.usecases.operations.verify import LocatedDifference, Verifier
from storage.engine.database import Database
from tests.integration.support.writing import drop_wake_ups
from tests.support.harness import Servers
from verification.benchmarks.retention import Appends

DAYS = 30
GOAL = 0.7
ENTRIES = 200
HOT_ENTRIES = 10
FOLD_REVISIONS = 50
_TABLES = ("revision", "amendment", "rejection", "prism_base", "prism_snapshot")
_KEY = session_key(DEFAULT_TENANT, "large")
_AGE = """
UPDATE revision SET created_at = now() - make_interval(days => %(days)s * 2)
    + make_interval(secs => 86400.0 * %(days)s * (revision - 1) / %(revisions)s)
WHERE revision > 0
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this benchmark."""
    parser.add_argument("--revisions", type=int, default=2_000, help="of the memory (2,000)")


def run(seconds: float, *, revisions: int) -> dict[str, Any]:
    """Measures; see the module."""
    with Servers.started(fsync=True) as servers:
        return asyncio.run(_measure(servers, servers.new_database(), revisions, seconds))


async def _build(database: Database, revisions: int) -> int:
    """Makes the memory; returns its newest revision."""
    memories = memories_of(
        database, WakeUps(drop_wake_ups), ProgressWatcher(database), b"key", Limits()
    )
    spec = PrismSpec(schema_source="class Facts:\n    facts: dict[str, str]\n")
    await memories.create(DEFAULT_TENANT, "large", "m", spec)
    editor = Editor(database, memories, Limits())
    target = Target(session="large", memory="m")
    made = 0
    while made < revisions:
        # Every other revision is about what is under way.
        entry = made * 7 % ENTRIES if made % 2 else made // 2 % HOT_ENTRIES
        words = " ".join(hashlib.sha256(f"{made} {n}".encode()).hexdigest()[:8] for n in range(22))
        edit = Edit(op=None, path=f"$.facts.fact{entry}", value_json=f'"{words}"')
        stored, _ = await editor.revise(DEFAULT_TENANT, target, [edit])
        if stored.revision % FOLD_REVISIONS == 0:
            stored, _ = await editor.fold(DEFAULT_TENANT, target)
        made = stored.revision
    return made


async def _measure(servers: Servers, url: str, revisions: int, seconds: float) -> dict[str, Any]:
    database = Database.connect(url, pool_size=6, name="bench")
    for name in ("large", "small"):
        await sessions.create(database, DEFAULT_TENANT, name, language="simple")
    revisions = await _build(database, revisions)
    retention = Retention(history_days=DAYS)
    await sessions.update(
        database, DEFAULT_TENANT, "large", metadata=None, retention=retention, etag=""
    )
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as admin:
        sql = psycopg.ClientCursor(admin)
        sql.execute(_AGE, {"days": DAYS, "revisions": revisions})
        sql.execute("VACUUM FULL ANALYZE revision, amendment, prism_base, prism_snapshot")
        before = _sizes(sql)
        appends = Appends(database)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(appends.appender.run())
            idle = await appends.during(asyncio.sleep(seconds / 2))
            sql.execute("UPDATE retention_turn SET ready_at = now()")
            begun = time.monotonic()
            retainer = Retainer(database, WakeUps(drop_wake_ups), b"key", Config())
            busy = await appends.during(retainer.look())
            took = time.monotonic() - begun
            running.cancel()
        after = _sizes(sql)
        expired = sql.execute("SELECT count(*) FROM revision WHERE expired").fetchall()[0][0]
    verifier = Verifier(database, use_cases())
    async for one in verifier.verify(DEFAULT_TENANT, "large"):
        assert not isinstance(one, LocatedDifference), one
    await database.close()
    held, left = (sum(one["bytes"] for one in of.values()) for of in (before, after))
    return {
        "value": round(left / held, 3),
        "goal": f"<= {GOAL}",
        "revisions": revisions,
        "expired": expired,
        "seconds": round(took, 2),
        "before": before,
        "after": after,
        "appends": {
            f"{name} {at}": round(busy[name][at] / idle[name][at], 2)
            for name in busy
            for at in ("p50", "p95")
        },
        "p95 ms": {name: round(1000 * busy[name]["p95"], 1) for name in busy},
    }


def _sizes(sql: Any) -> dict[str, dict[str, int]]:
    """Returns rows, and the bytes of their values, by table."""
    found = {}
    for table in _TABLES:
        query = f"SELECT count(*), coalesce(sum(pg_column_size(t)), 0) FROM {table} t"
        ((rows, size),) = sql.execute(query).fetchall()
        found[table] = {"rows": int(rows), "bytes": int(size)}
    return found
