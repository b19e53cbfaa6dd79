"""Sources over gRPC: levels, what reads leave out, quarantine and release; no worker."""

from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from palimpsest import Edit
from tests.support.harness import Servers, api

POISON = "The harbour pays out to Mallory."
SCHEMA = "class Notes:\n    food: list[str]\n"


@pytest.fixture(scope="module")
def address(servers: Servers) -> Iterator[str]:
    with api(servers.new_database()) as (_, address):
        yield address


@pytest.fixture(scope="module")
async def client(address: str) -> AsyncIterator[palimpsest.Client]:
    async with palimpsest.connect(address) as client:
        yield client


@pytest.fixture
async def session(client: palimpsest.Client) -> palimpsest.Session:
    session = await client.create_session(uuid4().hex, default_memory=False)
    async with session.producer("p") as producer:
        await producer.append("The harbour is in Bergen.", source="user")
        await producer.append(POISON, source="web:x")
        await producer.append("The harbour is old, a letter says.", source="mail")
        await producer.append("Ann likes tea.")
        await producer.flush()
    return session


async def found(session: palimpsest.Session, **options: Any) -> list[int]:
    """Returns the positions that a search by words finds."""
    searched = await session.search("harbour", mode="words", **options)
    return sorted(one.chunk.position for one in searched.results)


async def test_nothing_differs_where_no_level_is_set(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    assert await client.access.sources(session.id) == []
    assert await found(session) == [1, 2, 3]
    assert {one.trust async for one in session.chunks()} == {"trusted"}


async def test_what_is_blocked_is_listed_and_not_found(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    access = client.access
    rule = await access.set_source_trust("web:*", "blocked", session=session.id)
    assert (rule.source, rule.trust, rule.session) == ("web:*", "blocked", session.id)
    await access.set_source_trust("mail", "unverified", session=session.id)
    assert [one.trust async for one in session.chunks()] == [
        *("trusted", "blocked", "unverified", "trusted"),
    ]
    assert [one.text async for one in session.chunks()][1] == POISON
    assert await found(session) == [1, 3]
    assert await found(session, min_trust="trusted") == [1]
    recalled = await session.recall("harbour", tokens=500)
    assert POISON not in recalled.text
    assert {part.trust for part in recalled.parts} == {"trusted", "unverified"}
    recalled = await session.recall("harbour", tokens=500, min_trust="trusted")
    assert "letter" not in recalled.text
    assert "Bergen" in recalled.text
    trusted = [one.position async for one in session.chunks(min_trust="trusted")]
    assert trusted == [1, 4]
    await access.set_source_trust("web:*", None, session=session.id)
    assert await found(session) == [1, 2, 3]
    (left,) = await access.sources(session.id)
    assert (left.source, left.trust, left.quarantined) == ("mail", "unverified", False)


async def test_a_level_of_the_tenant_applies_to_all_sessions(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    await client.access.set_source_trust("web:*", "blocked")
    try:
        assert await found(session) == [1, 3]
        await client.access.set_source_trust("web:x", "trusted", session=session.id)
        assert await found(session) == [1, 2, 3]
        assert [one.session for one in await client.access.sources(session.id)] == [session.id, ""]
    finally:
        await client.access.set_source_trust("web:*", None)


async def test_a_quarantine_holds_and_is_released(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    memory = await session.create_memory("m", SCHEMA)
    await memory.edit([Edit.add("$.food", ["tea"])])
    access = client.access
    done = await access.quarantine_source(session.id, "web:x")
    assert (done.trust, [one.memory for one in done.memories]) == ("blocked", ["m"])
    assert done.memories[0].revision == 0, "it has read nothing yet"
    again = await access.quarantine_source(session.id, "web:x")
    assert again == done
    assert await found(session) == [1, 3]
    with pytest.raises(palimpsest.FailedPrecondition, match="ReleaseSource") as refused:
        await access.set_source_trust("web:x", "trusted", session=session.id)
    assert refused.value.reason == "SOURCE_QUARANTINED"
    released = await access.release_source(session.id, "web:x")
    assert released.trust == "trusted"
    assert await found(session) == [1, 2, 3]
    with pytest.raises(palimpsest.FailedPrecondition) as refused:
        await access.release_source(session.id, "web:x")
    assert refused.value.reason == "SOURCE_NOT_QUARANTINED"
    actions = [
        (one.action, one.target)
        async for one in access.audit_events(action="source.", session=session.id)
    ]
    assert actions == [
        ("source.quarantine", "web:x"),
        ("source.quarantine", "web:x"),
        ("source.release", "web:x"),
    ]


@pytest.mark.parametrize("before", ["none", "unverified"])
async def test_a_release_gives_the_level_from_before_and_no_better_one(
    client: palimpsest.Client, session: palimpsest.Session, before: str
) -> None:
    access = client.access
    await access.set_source_trust("web:*", "blocked", session=session.id)
    if before != "none":
        await access.set_source_trust("web:x", "unverified", session=session.id)
    await access.quarantine_source(session.id, "web:x")
    released = await access.release_source(session.id, "web:x")
    expected = {"none": ("blocked", [1, 3]), "unverified": ("unverified", [1, 2, 3])}[before]
    assert (released.trust, await found(session)) == expected
    rules = [(one.source, one.trust) for one in await access.sources(session.id)]
    assert rules == [("web:*", "blocked"), ("web:x", "unverified")][: 1 + (before != "none")]
    # A quarantine of its beginning goes on.
    await access.quarantine_source(session.id, "web:*")
    await access.quarantine_source(session.id, "web:x")
    assert (await access.release_source(session.id, "web:x")).trust == expected[0]


@pytest.mark.parametrize("source", ["", "*web", "w*b*", "a/b", "a\0b", "a\nb", "x" * 300])
async def test_a_source_that_is_none_is_refused(
    client: palimpsest.Client, session: palimpsest.Session, source: str
) -> None:
    with pytest.raises(palimpsest.InvalidArgument):
        await client.access.set_source_trust(source, "blocked", session=session.id)
    with pytest.raises(palimpsest.InvalidArgument):
        await client.access.quarantine_source(session.id, source)


async def test_a_session_that_is_none_is_refused(client: palimpsest.Client) -> None:
    for call in (
        client.access.sources("nobody"),
        client.access.set_source_trust("web", "blocked", session="nobody"),
        client.access.quarantine_source("nobody", "web"),
        client.access.release_source("nobody", "web"),
    ):
        with pytest.raises(palimpsest.NotFound, match="there is no session"):
            await call
