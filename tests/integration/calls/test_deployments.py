"""A worker whose model has two deployments: each memory stays at one, until that fails."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from uuid import uuid4

import psycopg
import pytest

import palimpsest
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import Servers, api, worker

SCHEMA = "class A:\n    topics: dict[str, list[str]]\n"
MODEL = "openai/shared"
BROKEN: tuple[int, dict[str, str], str] = (503, {}, "{}")
MEMORIES = 6


@pytest.fixture
def models() -> Iterator[list[FakeModel]]:
    with ExitStack() as stack:
        yield [stack.enter_context(fake_model()) for _ in range(2)]


async def test_memories_stay_where_they_are_warm_and_move_when_a_place_fails(
    servers: Servers, models: list[FakeModel]
) -> None:
    url = servers.new_database()
    places = [
        {"name": f"place-{at}", "model": MODEL, "api_base": model.url, "api_key": "secret-word"}
        for at, model in enumerate(models)
    ]
    settings = {
        "PALIMPSEST_MODEL": MODEL,
        "PALIMPSEST_DEPLOYMENTS": json.dumps(places),
        **servers.redis_settings(),
        "PALIMPSEST_RECONCILE_SECONDS": "0.2",
        "PALIMPSEST_MODEL_TRIES": "1",
        # One call at a time: no call moves to another deployment to wait less.
        "PALIMPSEST_WORKER_CONCURRENCY": "1",
        "PALIMPSEST_STEP_TRIES": "1",
    }
    with api(url, **settings) as (_, address), worker(url, **settings):
        async with palimpsest.connect(address) as client:
            session = await client.create_session(f"places-{uuid4().hex}")
            memories = [
                await session.create_memory(f"m{number}", SCHEMA, chunk_tokens=1)
                for number in range(MEMORIES)
            ]

            async def append(*texts: str) -> None:
                async with session.producer(f"p-{uuid4().hex}") as producer:
                    for text in texts:
                        await producer.append(text)
                    ack = await producer.flush()
                assert ack is not None
                for memory in memories:
                    await memory.get(after=ack.read_token, timeout=150)

            await append("one", "two", "three")
            asked = _deployments(servers.as_superuser(url))
            assert all(len(places) == 1 for places in asked.values()), "each stays at one"
            assert sum(len(model.prompts) for model in models) == 3 * MEMORIES

            broken = next(iter(asked.values())).pop()
            models[int(broken[-1])].script = [BROKEN] * 100
            await append("four", "five")
            first = 3 * MEMORIES
            later = _deployments(servers.as_superuser(url), skip=first)
            assert all(places == {f"place-{1 - int(broken[-1])}"} for places in later.values())
            with psycopg.connect(servers.as_superuser(url)) as connection:
                failed = connection.execute(
                    "SELECT DISTINCT deployment FROM call WHERE reply IS NULL"
                ).fetchall()
                residuals = connection.execute(
                    "SELECT count(*) FROM call WHERE reply IS NOT NULL AND residual IS NULL"
                ).fetchone()
            assert failed == [(broken,)]
            assert residuals == (0,), "each reply is compared with what was predicted"


def _deployments(url: str, skip: int = 0) -> dict[str, set[str]]:
    """Returns the deployments that have answered each memory."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT memory_id, deployment FROM call WHERE reply IS NOT NULL"
            " ORDER BY created_at OFFSET %s",
            (skip,),
        ).fetchall()
    found: dict[str, set[str]] = {}
    for memory, deployment in rows:
        found.setdefault(str(memory), set()).add(deployment)
    return found
