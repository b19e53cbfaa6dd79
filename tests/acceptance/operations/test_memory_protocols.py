"""AOEP-v0 and the contradiction test, as far as they are deterministic; docs/results/forgetting.md.

A stream of typed events is replayed, and neutral probes ask for the state. Obligations and negative
invariants are never pooled: a store that keeps nothing would pass every one of the latter.
"""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from grpc import aio

import palimpsest
from palimpsest.v1 import session_service_pb2 as pb
from palimpsest.v1 import session_service_pb2_grpc
from tests.acceptance.operations.test_deletion_protocol import checked
from tests.support.harness import Servers, api, worker
from verification.forgetting.deletion import SCHEMA, applied, table

pytestmark = [pytest.mark.prove, pytest.mark.timeout(400)]
SECRET, OTHER = "quillaja7741", "marasmius2209"
PATH = "$.facts['town']"
Results = list[tuple[str, ...]]


@pytest.fixture
async def served(servers: Servers) -> AsyncIterator[tuple[str, palimpsest.Client]]:
    url = servers.new_database()
    # A key matters to a server that requires one.
    with (
        api(url) as (_, address),
        api(url, PALIMPSEST_AUTHENTICATION="required") as (_, guarded),
        worker(url),
    ):
        async with palimpsest.connect(address) as client:
            yield guarded, client


def row(kind: str, operation: str, what: str, passed: bool) -> tuple[str, ...]:
    return kind, operation, what, "pass" if passed else "FAIL"


async def value(memory: palimpsest.Memory) -> str:
    return json.dumps((await memory.get()).value)


async def calls_with(address: str, key: str) -> bool:
    """Returns whether a call with this key is accepted."""
    async with aio.insecure_channel(address) as channel:
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        try:
            await stub.ListSessions(
                pb.ListSessionsRequest(), metadata=(("authorization", f"Bearer {key}"),)
            )
        except aio.AioRpcError:
            return False
    return True


async def test_aoep(served: tuple[str, palimpsest.Client]) -> None:
    address, client = served
    session = await client.create_session("owner", default_memory=False)
    other = await client.create_session("other", default_memory=False)
    memory = await session.create_memory("notes", schema_source=SCHEMA)
    results: Results = []

    def obliged(operation: str, what: str, passed: bool) -> None:
        results.append(row("obligation", operation, what, passed))

    def never(operation: str, what: str, passed: bool) -> None:
        results.append(row("negative", operation, what, passed))

    # write, with an idempotency key
    first = await session.append([f"The password is {SECRET}."], request_id="w1", source="ann")
    again = await session.append([f"The password is {SECRET}."], request_id="w1", source="ann")
    await other.append([f"The password is {OTHER}."])
    await applied(session)
    (chunk,) = [one async for one in session.chunks()]
    obliged("write", "a repeated event is applied once", first.positions == again.positions)
    obliged("write", "a value names its source", chunk.source == "ann")
    # read
    obliged("read", "what was written is read", SECRET in (await session.recall("password")).text)
    seen = (await other.recall("password")).text
    never("read", "no value of another scope", SECRET not in seen and OTHER in seen)
    # update and rollback
    await memory.edit([palimpsest.Edit.put(PATH, "Lisbon")])
    kept = (await memory.get()).revision
    await memory.edit([palimpsest.Edit.put(PATH, "Porto")])
    known = json.dumps((await memory.get(revision=kept)).value)
    obliged("update", "the value before is known by its revision", "Lisbon" in known)
    now = await value(memory)
    never("update", "no superseded value in the present", "Lisbon" not in now and "Porto" in now)
    await memory.rollback(kept)
    events = [one.action async for one in client.access.audit_events(session="owner")]
    obliged("rollback", "it is logged", "memory.rollback" in events)
    now = await value(memory)
    never("rollback", "nothing of what was rolled back", "Porto" not in now and "Lisbon" in now)
    # permissions: a revoked key is a newer epoch
    key = await client.access.create_key(["read"])
    accepted = await calls_with(address, key.key)
    await client.access.revoke_key(key.info.id)
    listed = client.access.keys()
    states = {one.id: one.state async for one in listed}
    obliged("deny", "the revocation is reported", states[key.info.id] == "revoked")
    # Servers trust what they have looked up for ten seconds.
    async with asyncio.timeout(60):
        while await calls_with(address, key.key):
            await asyncio.sleep(0.5)
    never("deny", "no read under stale permission, ten seconds later", accepted)
    # tombstone and delete
    forgotten = await session.forget(text=SECRET, reason="asked for")
    assert forgotten.operation is not None
    await (await client.operation(forgotten.operation.id)).wait(timeout=120)
    (chunk,) = [one async for one in session.chunks()]
    tombstone = chunk.redaction
    said = tombstone is not None and tombstone.reason == "asked for"
    obliged("tombstone", "the position says that it was redacted, and why", said)
    never("tombstone", "no deleted value", SECRET not in (await session.recall("password")).text)
    await session.append([f"The password is {SECRET}."], request_id="w2")
    await applied(session)
    seen = (await session.recall("password")).text
    never("tombstone", "no deleted value when it is appended anew", SECRET not in seen)
    await session.delete(reason="asked for")
    erased = [one.kind async for one in client.access.erasures()]
    obliged("delete", "each deletion is recorded", erased == ["chunks", "session"])
    names = [one.id async for one in client.sessions()]
    never("delete", "no deleted scope is listed", names == ["other"])
    never("delete", "other scopes stay", OTHER in (await other.recall("password")).text)
    checked("aoep", table(sorted(results, reverse=True), ("kind", "operation", "probe", "result")))
    assert [one for one in results if one[-1] != "pass"] == []


#: Statement and contradiction, each as the edits that a reader of both makes.
CASES = {
    "replacement": (["Lisbon"], ["Porto"]),
    "polarity": (["likes fish"], ["does not eat fish"]),
    "retraction": (["has a dog"], []),
    "partial": (["Lisbon, near the harbour"], ["Lisbon, near the station"]),
    "bounded in time": (["Lisbon until May"], ["Porto since June"]),
}


async def is_current(memory: palimpsest.Memory, old: str, new: list[str]) -> bool:
    """Returns whether the present has the later value alone."""
    found = await memory.session.search_memories(old, limit=5)
    shown = await value(memory) + str([one.entry.value for one in found.results])
    return old not in shown and all(one in shown for one in new)


async def test_contradictions(served: tuple[str, palimpsest.Client]) -> None:
    """The later statement wins after every job; the earlier one is known by its revision."""
    _, client = served
    results: Results = []
    for case, ((old,), new) in CASES.items():
        session = await client.create_session(case.replace(" ", "-"), default_memory=False)
        memory = await session.create_memory("notes", schema_source=SCHEMA)
        await memory.edit([palimpsest.Edit.put(PATH, old)])
        before = (await memory.get()).revision
        edit = palimpsest.Edit.put(PATH, new[0]) if new else palimpsest.Edit.remove(PATH)
        await memory.edit([edit])

        at_once = await is_current(memory, old, new)
        operation = await memory.consolidate()
        await operation.wait(timeout=120)
        await applied(session)
        after_jobs = await is_current(memory, old, new)
        known = old in json.dumps((await memory.get(revision=before)).value)
        cells = ("pass" if one else "FAIL" for one in (at_once, after_jobs, known))
        results.append((case, *cells))
    head = ("case", "stale value absent", "after every job", "known by its revision")
    checked("contradictions", table(results, head))
    assert [one for one in results if "FAIL" in one] == []
