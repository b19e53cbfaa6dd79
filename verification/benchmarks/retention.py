"""Measures what expiry of a tenth, and of half, of a large log and ledger costs appends meanwhile.

A session has `--rows` chunks of 500 bytes with words, and as many calls with replies of 500 bytes.
Retention runs as in a worker, while a client appends to that session and to another one. `value`
is the median time of these appends during expiry, divided by that without, in the same run.
Besides, how long it took, and the growth of the tables with their indexes (`bloat`).
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable
from typing import Any

import psycopg

from service.domain.operations.retention import Retention
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Config, Limits
from service.usecases.log import sessions
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations.retention import Retainer
from storage.engine.database import Database
from tests.integration.support.writing import drop_wake_ups, submission
from tests.support.harness import Servers

DAYS = 30
GOAL = 2.0
_KEY = session_key(DEFAULT_TENANT, "large")
_FILL = """
INSERT INTO producer (session_key, producer_id, tenant_id, epoch, last_sequence)
VALUES (%(key)s, 'filler', %(tenant)s, 0, %(rows)s);
INSERT INTO chunk (session_key, position, tenant_id, producer_id, producer_sequence, kind, role,
    text, observation, thought, action, digest, created_at)
SELECT %(key)s, n, %(tenant)s, 'filler', n, 'text', '', repeat(md5(n::text) || ' ', 15), '', '', '',
    sha256(n::text::bytea), now() - interval '31 days'
FROM generate_series(1, %(rows)s) AS n;
INSERT INTO chunk_word (session_key, position, tenant_id, words, length)
SELECT session_key, position, tenant_id, to_tsvector('simple', text), 15 FROM chunk
WHERE session_key = %(key)s;
INSERT INTO call (session_key, call_id, tenant_id, occasion, key, purpose, template, model, reply,
    input_tokens, predicted_cached_tokens, output_tokens, latency_ms, created_at)
SELECT %(key)s, gen_random_uuid(), %(tenant)s, 'step ' || n, sha256(n::text::bytea), 'revise', 't',
    'm', repeat(md5(n::text) || ' ', 15), 100, 0, 10, 500, now() - interval '31 days'
FROM generate_series(1, %(rows)s) AS n;
UPDATE session SET head = %(rows)s, indexed_position = %(rows)s WHERE session_key = %(key)s
"""
_SIZE = "SELECT sum(pg_total_relation_size(t)) FROM unnest(ARRAY['chunk', 'chunk_word', 'call']) t"
_YOUNG = """
UPDATE chunk SET created_at = now() WHERE session_key = %(key)s AND position > %(old)s;
UPDATE call SET created_at = now() WHERE session_key = %(key)s AND occasion = ANY(
    SELECT 'step ' || n FROM generate_series(%(old)s + 1, %(rows)s) AS n)
"""
_AGE = """
UPDATE chunk SET created_at = now() - interval '31 days' WHERE session_key = %(key)s
    AND position <= %(old)s AND created_at > now() - interval '1 day';
UPDATE call SET created_at = now() - interval '31 days' WHERE session_key = %(key)s
    AND created_at > now() - interval '1 day' AND occasion = ANY(
        SELECT 'step ' || n FROM generate_series(1, %(old)s) AS n)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this benchmark."""
    parser.add_argument("--rows", type=int, default=100_000, help="chunks, and calls (100,000)")


def run(seconds: float, *, rows: int) -> dict[str, Any]:
    """Measures; see the module."""
    with Servers.started(fsync=True) as servers:
        return asyncio.run(_measure(servers, servers.new_database(), rows, seconds))


async def _measure(servers: Servers, url: str, rows: int, seconds: float) -> dict[str, Any]:
    database = Database.connect(url, pool_size=6, name="bench")
    for name in ("large", "small"):
        await sessions.create(database, DEFAULT_TENANT, name, language="simple")
    await sessions.update(
        database,
        DEFAULT_TENANT,
        "large",
        metadata=None,
        retention=Retention(chunk_days=DAYS, call_days=DAYS),
        etag="",
    )
    values = {"key": _KEY, "tenant": DEFAULT_TENANT, "rows": rows}
    found: dict[str, Any] = {}
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as admin:
        sql = psycopg.ClientCursor(admin)
        sql.execute(_FILL, values)
        sql.execute(_YOUNG, {**values, "old": 0})
        sql.execute("VACUUM FULL ANALYZE chunk, chunk_word, call")
        appends = Appends(database)
        done = 0
        async with asyncio.TaskGroup() as group:
            running = group.create_task(appends.appender.run())
            for percent in (10, 50):
                old = rows * percent // 100
                sql.execute(_AGE, {**values, "old": old})
                sql.execute("VACUUM ANALYZE chunk, chunk_word, call")
                before = _number(sql, _SIZE)
                idle = await appends.during(asyncio.sleep(seconds / 4))
                sql.execute("UPDATE retention_turn SET ready_at = now()")
                begun = time.monotonic()
                retainer = Retainer(database, WakeUps(drop_wake_ups), b"key", Config())
                busy = await appends.during(retainer.look())
                took = time.monotonic() - begun
                gone = _number(sql, "SELECT count(*) FROM chunk WHERE redaction_id IS NOT NULL")
                assert gone == old, (gone, old)
                after = _number(sql, _SIZE)
                sql.execute("VACUUM ANALYZE chunk, chunk_word, call")
                vacuumed = _number(sql, _SIZE)
                found[f"{percent} %"] = {
                    "rows": 2 * (old - done),
                    "seconds": round(took, 1),
                    "bloat": round(after / before, 3),
                    "vacuumed": round(vacuumed / before, 3),
                    **{
                        f"{name} {at}": round(busy[name][at] / idle[name][at], 2)
                        for name in busy
                        for at in ("p50", "p95")
                    },
                    "p95 ms": {name: round(1000 * busy[name]["p95"], 1) for name in busy},
                }
                done = old
                print(percent, found[f"{percent} %"], flush=True)
            running.cancel()
    await database.close()
    value = max(one["large p50"] for one in found.values())
    return {"value": value, "goal": f"<= {GOAL}", "rows": rows, **found}


def _number(sql: Any, query: str) -> float:
    ((number,),) = sql.execute(query).fetchall()
    return float(number)


class Appends:
    """A client that appends one chunk after the other, to both sessions in turn."""

    def __init__(self, database: Database) -> None:
        self.appender = Appender(database, WakeUps(drop_wake_ups), b"key", Limits())
        self._sequence = 0

    async def during(self, work: Awaitable[object]) -> dict[str, dict[str, float]]:
        """Appends while `work` is under way; returns the times of appends by session."""
        times: dict[str, list[float]] = {"large": [], "small": []}
        task = asyncio.ensure_future(work)
        while not task.done():
            self._sequence += 1
            for name, taken in times.items():
                begun = time.monotonic()
                await self.appender.submit(
                    DEFAULT_TENANT, submission(name, ["a" * 500], first=self._sequence)
                )
                taken.append(time.monotonic() - begun)
        await task
        return {
            name: {
                "p50": statistics.median(taken),
                "p95": statistics.quantiles(taken, n=20)[-1],
            }
            for name, taken in times.items()
        }
