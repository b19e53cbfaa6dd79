"""Forgetting as clients see it: what is redacted is gone from everywhere, and its twin is not."""

import json
import subprocess
from collections.abc import Iterator

import pytest

import palimpsest
from service.local import binaries
from tests.support.harness import Servers, api, worker

SECRET = "quillaja-7741"
TWIN = "marasmius-2209"
TEXTS = (
    "The harbour opens at six in the morning, and closes late.",
    f"The password of the north gate is {TWIN}, says Ann.",
    "Nothing else happened on Monday, but for the rain in the evening.",
    f"The password of the south gate is {SECRET}, says Ben.",
    "On Tuesday the ferry was late again, by half an hour.",
    "The gates are painted green, and the boats are blue.",
    "On Wednesday the market had fresh fish and old bread.",
    "The keeper of the harbour is called Joris, since last year.",
)


@pytest.fixture(scope="module")
def served(servers: Servers) -> Iterator[tuple[str, str]]:
    url = servers.new_database()
    with api(url) as (_, address), worker(url):
        yield address, servers.as_superuser(url)


def dumped(url: str) -> str:
    """Returns a database as pg_dump writes it, in lower case."""
    program = str(binaries.find_postgres() / "pg_dump")
    made = subprocess.run(
        [program, f"--dbname={url}", "--format=plain"], capture_output=True, check=True, timeout=120
    )
    return made.stdout.decode().lower()


@pytest.mark.timeout(300)
async def test_a_redacted_fact_is_nowhere_and_its_twin_stays(served: tuple[str, str]) -> None:
    address, url = served
    async with palimpsest.connect(address) as client:
        session = await client.create_session("s")
        notes = await session.create_memory("notes", schema="class N:\n    facts: dict[str, str]\n")
        tree = await session.create_tree("tree", segment_tokens=64)
        state = await session.create_state("state", task="Remember the passwords.", period=2)
        appended = await session.append(TEXTS, request_id="r")
        await session.flush()
        for memory in (notes, tree, state):
            await memory.get(fully_applied=True, timeout=120)
        answer = await session.ask("What is the password of the south gate?", timeout=120)
        assert SECRET in (await session.recall("password of the south gate", tokens=500)).text
        found = await session.search(SECRET, fully_applied=True, timeout=60)
        assert found.results[0].chunk.position == 4
        assert SECRET in dumped(url)

        dry = await session.forget(text="QUILLAJA-7741", dry_run=True)
        assert (dry.chunks, dry.operation) == (1, None)
        assert SECRET in (await session.recall("password of the south gate", tokens=500)).text
        forgotten = await session.forget(text="QUILLAJA-7741", reason="asked for")
        assert [(one.first, one.last) for one in forgotten.positions] == [(4, 4)]
        assert forgotten.operation is not None
        operation = await client.operation(forgotten.operation.id)
        redaction = await operation.wait(timeout=60)
        assert redaction.removed["chunk.content"] == 1
        assert SECRET not in dumped(url)

        for memory in (notes, tree, state):
            await memory.get(fully_applied=True, timeout=120)
        with pytest.raises(palimpsest.NotFound):
            await session.answer(answer.id)
        again = await session.ask("What is the password of the south gate?", timeout=120)
        assert SECRET not in again.text
        recalled = await session.recall("password of the gate", tokens=500)
        assert SECRET not in recalled.text
        assert TWIN in recalled.text
        twins = await session.search(TWIN, fully_applied=True, timeout=60)
        assert twins.results[0].chunk.position == 2
        assert [one.chunk.position for one in (await session.search(SECRET)).results] == []
        chunks = [one async for one in session.chunks()]
        assert [one.position for one in chunks] == [*range(1, len(TEXTS) + 1)]
        tombstone = chunks[3]
        assert tombstone.text == ""
        assert tombstone.redaction is not None
        assert tombstone.redaction.reason == "asked for"
        # What is sent again is acked, and stays away.
        assert (await session.append(TEXTS, request_id="r")).positions == appended.positions
        after = dumped(url)
        assert SECRET not in after
        assert TWIN in after


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"text": "ab"},
        {"text": "abc", "thread": "t"},
        {"positions": [(0, 3)]},
        {"positions": [(5, 3)]},
        {"thread": "a/b"},
        {"text": "x" * 1001},
        {"text": "abc", "reason": "x" * 501},
        {"positions": [(1, 10**18)] * 1001},
    ],
    ids=lambda wrong: json.dumps(wrong)[:40],
)
async def test_bad_requests_are_refused(served: tuple[str, str], wrong: dict[str, object]) -> None:
    async with palimpsest.connect(served[0]) as client:
        session = await client.create_session("bad", exist_ok=True)
        with pytest.raises((palimpsest.InvalidArgument, ValueError)):
            await session.forget(**wrong)  # type: ignore[arg-type]
        with pytest.raises(palimpsest.NotFound):
            await client.session("none").forget(text="abc")
