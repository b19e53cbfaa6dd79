"""Random sessions of the offline model: an import of an export is exported alike."""

import asyncio
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import palimpsest
from palimpsest import Chunk, Edit
from tests.support.harness import Servers, api, worker

pytestmark = [pytest.mark.prove, pytest.mark.timeout(900)]
Chunks = list[tuple[dict[str, Any], dict[str, Any]]]
SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"

TEXT = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=300
)
WORDS = st.sampled_from(["Ann", "Bob", "ship", "harbour", "owns", "left on Monday", "is", "7", "."])
SENTENCE = st.lists(WORDS, min_size=3, max_size=40).map(" ".join)
LABELS = st.fixed_dictionaries(
    {
        "thread": st.sampled_from(["", "a", "user:42", "josé 👩‍🚀"]),
        "source": st.sampled_from(["", "ann", "doc|1"]),
        "occurred_at": st.none()
        | st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),
        "metadata": st.dictionaries(TEXT.map(lambda text: text[:64]), TEXT, max_size=3),
    }
)
CONTENT = st.one_of(
    st.builds(lambda text: {"kind": "text", "text": text}, SENTENCE | TEXT),
    st.builds(lambda text: {"kind": "message", "role": "user", "text": text}, SENTENCE | TEXT),
    st.builds(
        lambda seen, done, first: {
            "kind": "agent_step",
            "observation": seen,
            "action": done,
            "observed_first": first,
        },
        SENTENCE,
        SENTENCE,
        st.booleans(),
    ),
)
CHUNKS = st.lists(st.tuples(CONTENT, LABELS), min_size=0, max_size=25)
KINDS = st.sets(st.sampled_from(["prism", "tree", "state"]))


@pytest.fixture(scope="module")
def running(servers: Servers) -> Iterator[str]:
    """Yields the address of a service of its own."""
    url = servers.new_database()
    with api(url) as (_, address), worker(url, **servers.redis_settings()):
        yield address


async def fill(
    session: palimpsest.Session,
    chunks: list[tuple[dict[str, Any], dict[str, Any]]],
    kinds: set[str],
) -> None:
    if "prism" in kinds:
        await session.create_memory("p|q", schema_source=SCHEMA, chunk_tokens=40)
    if "tree" in kinds:
        await session.create_tree("t", segment_tokens=64, max_children=2)
    if "state" in kinds:
        await session.create_state("v", task="Notes.", period=2, episode_vectors=2)
    token = ""
    for number, (content, labels) in enumerate(chunks):
        one = Chunk(**content, **labels)
        token = (await session.append(one, request_id=f"r{number}")).read_token
    for memory in await session.memories():
        if memory.kind == "state":
            await session.state(memory.id).context(fully_applied=True, timeout=200)
        elif token:
            await session.memory(memory.id).get(after=token, timeout=200)
    if "prism" in kinds:
        edited = session.memory("p|q")
        await edited.edit([Edit.put("$.topics.mine", ["1"])])
        await edited.rollback(0)
    if chunks:
        await session.ask("Where is Ann?", timeout=200)


def lines_of(file: Path) -> list[str]:
    """Returns the lines after the header."""
    return file.read_text().splitlines()[1:]


@given(chunks=CHUNKS, kinds=KINDS)
@settings(max_examples=8)
def test_random_sessions_move_without_a_difference(
    running: str, chunks: Chunks, kinds: set[str]
) -> None:
    async def check() -> None:
        name = f"random-{uuid4().hex}"
        async with palimpsest.connect(running) as client:
            session = await client.create_session(name, metadata={"a": "b"})
            await fill(session, chunks, kinds)
            with tempfile.TemporaryDirectory() as folder:
                first, second = Path(folder, "first"), Path(folder, "second")
                await session.export(first)
                copy = await client.import_session(first, f"{name}-copy")
                await copy.export(second)
                assert lines_of(second) == lines_of(first)
            assert (await copy.info()).head == len(chunks)

    asyncio.run(check())
