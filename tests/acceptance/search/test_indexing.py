"""The search index by real processes: what is appended is indexed, whatever dies meanwhile."""

import os
import subprocess
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from palimpsest.sync import Client
from service.local.stack import TemporaryStack
from service.settings.config import Config
from storage.search.setup import is_ours
from tests.support import forking
from tests.support.fake_embeddings import DIMENSIONS, FakeEmbeddings, fake_embeddings
from tests.support.harness import Servers, api, eventually, worker

pytestmark = pytest.mark.timeout(400)
CHUNKS = 300
#: How long a busy machine may take.
SECONDS = 120.0


def settings(server: FakeEmbeddings) -> dict[str, str]:
    return {
        "PALIMPSEST_EMBEDDING_MODEL": "openai/words",
        "PALIMPSEST_EMBEDDING_BASE_URL": server.url,
    }


def places(servers: Servers, url: str) -> tuple[int, int, bool]:
    with psycopg.connect(servers.as_superuser(url)) as connection:
        row = connection.execute(
            "SELECT indexed_position, embedded_position, has_unindexed FROM session"
        ).fetchone()
    assert row is not None
    return row


def counts(servers: Servers, url: str) -> tuple[int, int]:
    with psycopg.connect(servers.as_superuser(url)) as connection:
        row = connection.execute(
            "SELECT (SELECT count(*) FROM chunk_word), (SELECT count(*) FROM chunk_vector)"
        ).fetchone()
    assert row is not None
    return row


def append(address: str, texts: list[str], producer: str) -> None:
    with Client(address) as client:
        session = client.create_session("s", exist_ok=True)
        with session.producer(producer) as to_session:
            for text in texts:
                to_session.append(text)


@pytest.mark.prove
def test_what_is_appended_is_indexed_though_workers_are_killed(servers: Servers) -> None:
    url = servers.new_database()
    texts = [f"chunk {n} of {CHUNKS}" for n in range(CHUNKS)]
    # The first call takes long enough to kill the worker that made it.
    with fake_embeddings(seconds=SECONDS) as server, api(url) as (_, address):
        with worker(url, **settings(server)) as first:
            append(address, texts[:200], "one")
            eventually("a call for vectors", lambda: server.requests, SECONDS)
            first.kill()
        server.seconds = 0.0
        with worker(url, **settings(server)):
            append(address, texts[200:], "two")
            done = (CHUNKS, CHUNKS, False)
            eventually("all is indexed", lambda: places(servers, url) == done, SECONDS)
            assert counts(servers, url) == (CHUNKS, CHUNKS)
            with psycopg.connect(servers.as_superuser(url)) as connection:
                row = connection.execute(
                    "SELECT count(*), sum(input_tokens), count(failure) FROM call"
                    " WHERE purpose = 'embed'"
                ).fetchone()
            assert row is not None
            calls, tokens, failures = row
            assert (tokens, failures) == (4 * CHUNKS, 0), "each chunk is paid once"
            assert calls <= len(server.requests) <= calls + 1, "what the kill cut off is not kept"


@pytest.mark.prove
def test_a_server_of_vectors_that_is_away_keeps_nothing_else_waiting(servers: Servers) -> None:
    url = servers.new_database()
    with fake_embeddings() as server, api(url) as (_, address):
        server.script = [(503, {}, "{}")] * 3
        # Both are there for each of the calls.
        append(address, ["one", "two"], "one")
        with worker(url, **settings(server)):
            eventually("words", lambda: places(servers, url)[0] == 2, SECONDS)
            eventually("vectors", lambda: places(servers, url) == (2, 2, False), SECONDS)
    assert len(server.requests) == 4


def test_migrate_says_what_search_can_do(servers: Servers) -> None:
    url = servers.new_database()
    done = subprocess.run(
        [forking.python(), "-m", "service.cli", "migrate"],
        env=os.environ
        | {"PALIMPSEST_DATABASE_URL": url, "PALIMPSEST_EMBEDDING_DIMENSIONS": str(DIMENSIONS)}
        | {"PALIMPSEST_EMBEDDING_MODEL": "openai/words"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.splitlines()[1].startswith("search by words")
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT indexname FROM pg_indexes WHERE tablename = 'chunk_vector'"
        ).fetchall()
        vectors = connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'")
        assert any(is_ours(name) for (name,) in rows) == (vectors.fetchone() is not None)


@pytest.mark.prove
def test_the_embedded_servers_have_all_that_search_can_use(folder: Path) -> None:
    with TemporaryStack(Config(listen="127.0.0.1:0")) as stack:
        assert stack.address is not None
        name = f"s-{uuid4()}"
        with Client(stack.address) as client:
            client.create_session(name)
        environment = stack._environment
        with psycopg.connect(environment["PALIMPSEST_DATABASE_URL"]) as connection:
            rows = connection.execute("SELECT extname FROM pg_extension").fetchall()
            offered = connection.execute(
                "SELECT name FROM pg_available_extensions WHERE name IN ('vector', 'btree_gin')"
            ).fetchall()
    assert {name for (name,) in offered} <= {name for (name,) in rows}
    assert offered
