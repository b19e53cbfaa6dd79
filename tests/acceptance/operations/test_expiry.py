"""Policies of retention on a running service, by real processes and the commands beside them.

A worker applies them by itself; dates of rows are the clock.
"""

import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

import palimpsest
from palimpsest import Edit
from tests.support import forking
from tests.support.harness import Servers, api, eventually, with_database, worker

POLICY = palimpsest.Retention(
    chunk_days=3, history_days=3, call_days=3, answer_days=3, trajectory_days=2
)
SCHEMA = "class Notes:\n    said: list[str]\n    topic: str | None = None\n"
TEXTS = [f"The museum number {n} is a ship in harbour {n * 7}." for n in range(8)]
EDITS = 25
#: Tables whose rows have a time, and what is dated back of them.
DATED = ("session", "chunk", "revision", "call", "answer", "tree_node", "state_vector")


async def fill(client: palimpsest.Client) -> str:
    """Makes a session with a memory of each kind that has read all; returns an answer's id."""
    session = await client.create_session("s", default_memory=False, retention=POLICY)
    memory = await session.create_memory("m", SCHEMA, chunk_tokens=1, encoding="in_place")
    tree = await session.create_tree("t", segment_tokens=64, max_children=2)
    state = await session.create_state("a", task="Collects ships.", period=2)
    async with session.producer("p") as producer:
        for text in TEXTS:
            await producer.append_step(observation=text, thought="I note it.", action="note()")
        ack = await producer.flush()
    assert ack is not None
    for one in (memory, state):
        await one.get(after=ack.read_token, timeout=100)
    await (await tree.seal()).wait()
    for number in range(EDITS):
        await memory.edit([Edit.put("$.topic", f"by hand {number}")])
    return (await memory.ask("Where is the ship number 3?", timeout=100)).id


def run(url: str, address: str, *arguments: str, **environment: str) -> Any:
    variables = {**os.environ, "PALIMPSEST_DATABASE_URL": url, "PALIMPSEST_ADDRESS": address}
    return forking.run(arguments, environment={**variables, **environment}, seconds=120)


def pass_time(servers: Servers, url: str) -> None:
    """Has all rows be ten days older, and a pass of retention be due."""
    with psycopg.connect(servers.as_superuser(url)) as admin:
        admin.execute("SET session_replication_role = replica")
        for table in DATED:
            admin.execute(
                sql.SQL("UPDATE {} SET created_at = created_at - interval '10 days'").format(
                    sql.Identifier(table)
                )
            )
        admin.execute("UPDATE call_sum SET day = day - 10")
        # Ten revisions a day: of each day the last one is kept.
        admin.execute(
            "UPDATE revision SET created_at = date_trunc('day', now(), 'UTC')"
            " - make_interval(days => 20 - (revision / 10)::integer)"
        )
        admin.execute("UPDATE retention_turn SET ready_at = now()")


@pytest.mark.prove
async def test_what_is_over_goes_on_a_running_service(servers: Servers) -> None:
    url = servers.new_database()
    with api(url) as (_, address):
        async with palimpsest.connect(address) as client:
            with worker(url):
                answer = await fill(client)
            session = client.session("s")
            before = [one async for one in session.memory("m").revisions()]
            shown = await session.memory("m").get()
            pass_time(servers, url)
            # The running sums are still of the day on which the calls were made.
            assert "spend.sum" in run(url, address, "verify", "--all", "--repair").stdout
            # Another worker: it looks for policies when it starts.
            with worker(url):
                eventually("a pass ends", lambda: is_over(servers, url))
            chunks = [one async for one in session.chunks()]
            assert [one.redaction is not None and one.redaction.cause for one in chunks] == [
                "expired"
            ] * len(TEXTS)
            assert not any(one.text or one.step_parts for one in chunks)
            with pytest.raises(palimpsest.NotFound):
                await session.answer(answer)
            listed = [one async for one in session.memory("m").revisions()]
            assert [one.value_digest for one in listed] == [one.value_digest for one in before]
            assert sum(one.expired for one in listed) > EDITS // 2
            assert (await session.memory("m").get()).value == shown.value
            for kind in ("prism", "tree", "state"):
                with pytest.raises(palimpsest.FailedPrecondition) as refused:
                    await rebuilt(session, kind)
                assert refused.value.reason == "LOG_EXPIRED"
        sizes = run(url, address, "usage", "--storage", "--session", "s", "--json")
        assert sizes.returncode == 0, sizes.stderr
        rows = {one["kind"]: one["rows"] for one in json.loads(sizes.stdout)}
        assert rows["answers"] == 0
        assert rows["log"] >= len(TEXTS), "tombstones stay"
        checked = run(url, address, "verify", "--all", "--json")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        found = run(url, address, "doctor", "--json")
        findings = {one["name"]: one for one in map(json.loads, found.stdout.splitlines())}
        assert findings["retention"]["level"] == findings["api"]["level"] == "ok", found.stdout


async def rebuilt(session: palimpsest.Session, kind: str) -> None:
    if kind == "prism":
        await session.memory("m").rebuild("m2")
    elif kind == "tree":
        await session.tree("t").rebuild("t2")
    else:
        await session.state("a").rebuild("a2")


def is_over(servers: Servers, url: str) -> bool:
    """Returns whether the pass that was due has ended."""
    with psycopg.connect(servers.as_superuser(url)) as admin:
        # A pass under way has a lease, and the next one is in an hour.
        ended = "SELECT bool_and(ready_at > now() + interval '10 minutes') FROM retention_turn"
        found = admin.execute(ended).fetchone()
    return found == (True,)


@pytest.mark.prove
async def test_a_restored_database_repeats_what_was_erased_later(
    servers: Servers, tmp_path: Path
) -> None:
    url, journal = servers.new_database(), str(tmp_path / "erasures.journal")
    with api(url, PALIMPSEST_ERASURE_JOURNAL=journal) as (_, address):
        async with palimpsest.connect(address) as client:
            for name in ("gone", "twin", "redacted"):
                session = await client.create_session(name)
                await session.append([f"the fact of {name}", "another text"])
    copy = with_database(url, f"restored_{uuid4().hex}")
    with psycopg.connect(servers.postgres.superuser_url, autocommit=True) as admin:
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {} OWNER palimpsest")
        names = (copy.rpartition("/")[2], url.rpartition("/")[2])
        admin.execute(made.format(*map(sql.Identifier, names)))
    with api(url, PALIMPSEST_ERASURE_JOURNAL=journal) as (_, address):
        async with palimpsest.connect(address) as client:
            await client.delete_session("gone")
            await client.session("redacted").forget(positions=[1])
    without = run(copy, address, "restore")
    assert without.returncode == 0, without.stderr
    assert "no erasure journal (PALIMPSEST_ERASURE_JOURNAL): what was erased later is back" in (
        without.stdout
    )
    said = run(copy, address, "restore", PALIMPSEST_ERASURE_JOURNAL=journal)
    assert said.returncode == 0, said.stderr
    assert f"2 missed erasures are repeated, by {journal}" in said.stdout
    with api(copy, PALIMPSEST_ERASURE_JOURNAL=journal) as (_, address):
        async with palimpsest.connect(address) as client:
            assert sorted([one.id async for one in client.sessions()]) == ["redacted", "twin"]
            texts = [one.text async for one in client.session("redacted").chunks()]
            assert texts == ["", "another text"]
            kept = [one.text async for one in client.session("twin").chunks()]
            assert kept == ["the fact of twin", "another text"]
    again = run(copy, address, "restore", PALIMPSEST_ERASURE_JOURNAL=journal)
    assert f"0 missed erasures are repeated, by {journal}" in again.stdout
    servers.drop_databases(copy)
