"""Everything that is stored of a session, made by real processes, then spoilt row by row."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner

import palimpsest
from palimpsest import Edit
from service.app.kinds import use_cases
from service.cli.commands import app
from service.domain.values.errors import NotFound
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.operations.verify import LocatedDifference, Verifier
from storage.engine.database import Database
from tests.support.fake_embeddings import fake_embeddings
from tests.support.harness import Servers, api, eventually, with_database, worker

pytestmark = pytest.mark.timeout(900)
SESSION = "s"
SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"
WIDER = "class Notes:\n    topics: dict[str, list[str]]\n    title: str\n"
TEXTS = [
    f"The museum number {n} is a ship in harbour {n * 7}. It opens at {n} o'clock, and"
    f" whoever comes late has to wait for gate {n % 3}."
    for n in range(24)
]


async def fill(address: str) -> None:
    """A session with memories of every kind, and whatever can be done to them."""
    async with palimpsest.connect(address) as client:
        session = await client.create_session(SESSION)
        prism = await session.create_memory(
            "p", schema_source=SCHEMA, chunk_tokens=1, encoding="amendments"
        )
        await session.create_memory("i", schema_source=SCHEMA, chunk_tokens=1, encoding="in_place")
        tree = await session.create_tree("t", segment_tokens=64, max_children=2)
        await session.create_state("v", task="Find the ship.", period=3, episode_vectors=2)
        async with session.producer("one") as producer:
            for text in TEXTS[:12]:
                await producer.append(text, metadata={"from": "test"})
            ack = await producer.flush()
        assert ack is not None
        for name in ("p", "i"):
            await session.memory(name).get(after=ack.read_token, timeout=200)
        state = session.state("v")
        await state.context(fully_applied=True, timeout=200)
        before = (await prism.look()).revision
        edits = [Edit.put(f"$.topics.by_hand_{n}", [f"note {n}", "x"]) for n in range(60)]
        await prism.edit(edits[:55], comment="by hand")
        await prism.edit([Edit.remove("$.topics.by_hand_3[0]"), *edits[55:58]])
        # After a removal everything is in the base already.
        await prism.edit(edits[58:])
        await prism.fold()
        await prism.rollback(before)
        await prism.update(schema=WIDER)
        await prism.edit([Edit.put("$.title", "Ships")])
        await state.rollback(1)
        async with session.producer("two") as producer:
            for text in TEXTS[12:18]:
                await producer.append_message("guide", text)
        await session.append(TEXTS[18], request_id="lone")
        last = await session.append([{"role": "guide", "content": text} for text in TEXTS[19:]])
        await prism.get(after=last.read_token, timeout=200)
        await session.memory("i").get(after=last.read_token, timeout=200)
        await state.context(fully_applied=True, timeout=200)
        await prism.consolidate()
        while "consolidation" not in [one.kind async for one in prism.revisions()]:
            await asyncio.sleep(0.1)
        await (await tree.seal()).wait(timeout=200)
        await prism.ask("When does the museum number 4 open?", timeout=200)
        await tree.ask("Where is the museum number 5?", timeout=200)
        await state.ask("What was asked?", timeout=200)
        while (index := await session.search_index()).embedded_position < index.head:
            await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def filled(servers: Servers) -> str:
    """Yields a database with such a session, which no process works on any more."""
    url = servers.new_database()
    with fake_embeddings() as embeddings:
        models = {
            "PALIMPSEST_EMBEDDING_MODEL": "openai/fake",
            "PALIMPSEST_EMBEDDING_BASE_URL": embeddings.url,
            "PALIMPSEST_EMBEDDING_API_KEY": "sk-test",
        }
        with api(url, **models) as (_, address), worker(url, **models) as process:
            asyncio.run(fill(address))
            assert process.stop() == 0
    return url


@dataclass
class Copy:
    """A copy of that database, to be spoilt."""

    servers: Servers
    url: str

    def spoil(self, statement: str) -> None:
        """Changes rows as the service never could: past keys, triggers and rights."""
        with psycopg.connect(self.servers.as_superuser(self.url)) as connection:
            connection.execute("SET session_replication_role = replica")
            assert connection.execute(statement.encode()).rowcount > 0, "nothing was changed"

    def verify(self, memory: str | None = None) -> list[LocatedDifference]:
        return asyncio.run(verified(self.url, memory))

    def names(self) -> set[str]:
        return {one.difference.name for one in self.verify()}


async def verified(url: str, memory: str | None) -> list[LocatedDifference]:
    database = Database.connect(url, pool_size=2, name="test")
    try:
        told = Verifier(database, use_cases()).verify(DEFAULT_TENANT, SESSION, memory)
        return [one async for one in told if isinstance(one, LocatedDifference)]
    finally:
        await database.close()


@pytest.fixture
def copy(servers: Servers, filled: str) -> Iterator[Copy]:
    name = sql.Identifier(f"copy_{uuid4().hex}")
    source = sql.Identifier(str(conninfo_to_dict(filled)["dbname"]))
    admin = with_database(servers.postgres.superuser_url, "postgres")
    with psycopg.connect(admin, autocommit=True) as connection:
        eventually("nobody is connected", lambda: not connected(connection, filled))
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(name, source))
    yield Copy(servers, with_database(filled, name.as_string().strip('"')))
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def connected(connection: "psycopg.Connection[tuple[object, ...]]", url: str) -> bool:
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = %s",
        (conninfo_to_dict(url)["dbname"],),
    ).fetchone()
    return row != (0,)


def test_what_the_service_made_does_not_differ(filled: str) -> None:
    assert asyncio.run(verified(filled, None)) == []
    with psycopg.connect(filled) as connection:
        connection.execute("SET ROLE palimpsest_app")
        connection.execute(f"SET app.tenant = '{DEFAULT_TENANT}'")
        kinds = {kind for (kind,) in connection.execute("SELECT DISTINCT kind FROM revision")}
        (snapshots,) = connection.execute("SELECT count(*) FROM prism_snapshot").fetchone() or (0,)
    # Else there would be checks that looked at nothing.
    assert kinds >= {"create", "step", "fold", "edit", "rollback", "schema", "consolidation"}
    assert kinds >= {"build", "seal", "episode"}
    assert snapshots > 0


OF = "(SELECT memory_id FROM memory WHERE name = '{}')"
P, PLACE, T, V = (OF.format(name) for name in ("p", "i", "t", "v"))

SPOILT = {
    "chunk.digest": "UPDATE chunk SET text = text || '!' WHERE position = 5",
    "chunk.digest ": 'UPDATE chunk SET metadata = \'{"from": "others"}\' WHERE position = 5',
    "chunk.metadata": "UPDATE chunk SET metadata = '{\"from\": 7}' WHERE position = 5",
    "chunk.missing": "DELETE FROM chunk WHERE position BETWEEN 5 AND 6",
    "producer.sequence": "UPDATE chunk SET producer_sequence = 99 WHERE position = 12",
    "producer.last": "UPDATE producer SET last_sequence = 99",
    "request.chunks": "UPDATE request SET last_position = last_position - 1"
    " WHERE request_id <> 'lone'",
    "request.chunks ": "UPDATE request SET digest = sha256('') WHERE request_id = 'lone'",
    "request.chunks  ": "UPDATE request SET first_position = 17 WHERE request_id = 'lone'",
    "session.head": "UPDATE session SET head = head - 1",
    "session.content_bytes": "UPDATE session SET content_bytes = content_bytes + 1",
    "revision.missing": f"DELETE FROM revision WHERE revision = 3 AND memory_id = {P}",
    "revision.chain": "UPDATE revision SET to_position = to_position + 1"
    f" WHERE revision = 3 AND memory_id = {P}",
    "revision.kind": f"UPDATE revision SET kind = 'create' WHERE kind = 'fold' AND memory_id = {P}",
    "memory.cursor": f"UPDATE memory SET revision = revision - 1 WHERE memory_id = {P}",
    "memory.ahead": "UPDATE session SET head = 20",
    "memory.status": f"UPDATE memory SET status = 'stalled' WHERE memory_id = {P}",
    "memory.status ": f"UPDATE memory SET status = 'active' WHERE memory_id = {T}",
    "memory.name": f"UPDATE memory SET name = 'q' WHERE memory_id = {P}",
    "memory.spec": f"UPDATE memory SET spec = '[]' WHERE memory_id = {P}",
    "prism.digest": f"UPDATE revision SET digest = '\\x00' WHERE revision = 3 AND memory_id = {P}",
    "prism.digest ": 'UPDATE amendment SET value = \'["other"]\' WHERE value = \'["note 7","x"]\'',
    "prism.digest  ": f"DELETE FROM amendment WHERE ordinal = 55 AND memory_id = {P}",
    "prism.amendment": f"DELETE FROM amendment WHERE ordinal = 7 AND memory_id = {P}",
    "prism.amendment ": f"UPDATE amendment SET value = '[' WHERE ordinal = 7 AND memory_id = {P}",
    "prism.amendment  ": "UPDATE amendment SET path = '$[''topics''][''no''][5]'"
    " WHERE op = 'remove'",
    "prism.base": f"UPDATE prism_base SET value = '{{}}' WHERE revision > 0 AND memory_id = {P}",
    "prism.base ": "UPDATE prism_base SET value = '[1]' WHERE revision = 0"
    f" AND memory_id = {PLACE}",
    "prism.snapshot": f"UPDATE prism_snapshot SET value = '{{}}' WHERE memory_id = {P}",
    "prism.value": f"UPDATE prism_value SET value = '{{}}' WHERE memory_id = {PLACE}",
    "prism.value ": f"UPDATE prism_value SET revision = 1 WHERE memory_id = {PLACE}",
    "prism.value  ": f"DELETE FROM prism_value WHERE memory_id = {PLACE}",
    "prism.unsaved": "UPDATE prism_value SET unsaved_amendments = unsaved_amendments + 1",
    "tree.digest": "UPDATE tree_node SET summary = summary || '!' WHERE level = 1 AND number = 2",
    "tree.digest ": f"UPDATE revision SET digest = '\\x00' WHERE revision = 1 AND memory_id = {T}",
    "tree.chain": "DELETE FROM tree_node WHERE level = 0 AND number = 2",
    "tree.children": "UPDATE tree_node SET children = 1 WHERE level = 1 AND number = 2",
    "tree.children ": "DELETE FROM tree_node WHERE level = (SELECT max(level) FROM tree_node)",
    "tree.coverage": "UPDATE tree_node SET end_position = 2000 WHERE number = (SELECT max(number)"
    " FROM tree_node WHERE level = 0) AND level = 0",
    "tree.coverage ": "UPDATE tree_node SET end_offset = end_offset + 1 WHERE level = 1"
    " AND number = 2",
    "tree.tokens": "UPDATE tree_node SET text_tokens = 1 WHERE level = 0 AND number = 2",
    "tree.words": "UPDATE tree_node SET words = '' WHERE level = 0 AND number = 2",
    "state.digest": "UPDATE state_vector SET text = text || '!' WHERE revision = 1",
    "state.digest ": f"UPDATE revision SET digest = '\\x00' WHERE revision = 1 AND memory_id = {V}",
    "state.vector": "DELETE FROM state_vector WHERE revision = 1",
    "state.vector ": "UPDATE state_vector SET text = 'Other.' WHERE revision = 0",
    "state.levels": "UPDATE state_levels SET runs = '[[0]]' WHERE revision = 2",
    "state.levels ": "DELETE FROM state_levels WHERE revision = 2",
    "state.children": "UPDATE state_vector SET children = '{1}' WHERE level = 2",
    "state.coverage": "UPDATE state_vector SET to_position = 4 WHERE revision = 1",
    "answer.citation": "UPDATE answer SET citations = jsonb_set(citations, '{0,position}', '999')"
    " WHERE citations <> '[]'",
    "answer.citation ": "UPDATE answer SET citations = jsonb_set(citations, '{0,node_id}',"
    f" '\"0.99\"') WHERE citations <> '[]' AND memory_id = {T}",
    "index.words": "UPDATE chunk_word SET words = '' WHERE position = 5",
    "index.words ": "DELETE FROM chunk_word WHERE position = 5",
    "index.words  ": "UPDATE chunk_word SET length = length + 1 WHERE position = 5",
    "index.position": "UPDATE session SET indexed_position = 1000",
    "index.vectors": "DELETE FROM chunk_vector WHERE position = 5",
    "index.vectors ": "UPDATE chunk_vector SET model = 'openai/other' WHERE position = 5",
    "index.vectors  ": "UPDATE chunk_vector SET to_character = 10000 WHERE position = 5",
    "index.vectors   ": "UPDATE chunk_vector SET embedding = '{1,1}' WHERE position = 5",
    "index.vectors    ": "UPDATE chunk_vector SET part = 3 WHERE position = 5",
    "spend.day": "UPDATE call_sum SET calls = calls + 1",
    "spend.day ": "DELETE FROM call_sum",
    "spend.sum": "UPDATE spend_sum SET tokens = tokens + 1",
    "spend.sum ": "UPDATE spend_sum SET day_micro_usd = day_micro_usd - 1",
    "spend.sum  ": "DELETE FROM spend_sum",
}


# What does not get into each other's way is spoilt in one copy.
BESIDE = (
    (("chunk", "producer", "request", "session"), ("state",), ("revision", "prism")),
    (("tree",), ("index", "answer"), ("memory",), ("spend",)),
)


def rounds() -> Iterator[tuple[str, ...]]:
    """Yields the names that are spoilt together."""
    for groups in BESIDE:
        names = [[one for one in SPOILT if one.partition(".")[0] in group] for group in groups]
        for together in zip_longest(*names):
            yield tuple(one for one in together if one is not None)


def test_all_of_them_are_spoilt() -> None:
    assert sorted(name for together in rounds() for name in together) == sorted(SPOILT)


@pytest.mark.parametrize("names", list(rounds()), ids=lambda names: "+".join(map(str.strip, names)))
def test_a_row_that_was_changed_is_found_by_name(copy: Copy, names: tuple[str, ...]) -> None:
    for name in names:
        copy.spoil(SPOILT[name])
    assert {name.strip() for name in names} <= copy.names()


def test_what_is_spoilt_once_is_reported_once(copy: Copy) -> None:
    copy.spoil(f"UPDATE revision SET digest = '\\x00' WHERE revision = 3 AND memory_id = {P}")
    (found,) = copy.verify()
    assert (found.part, found.difference.place) == ("memory p", "revision 3")


def test_one_memory_can_be_looked_at_alone(copy: Copy) -> None:
    copy.spoil("UPDATE chunk_word SET words = '' WHERE position = 5")
    copy.spoil(f"UPDATE prism_value SET value = '{{}}' WHERE memory_id = {PLACE}")
    assert [one.difference.name for one in copy.verify("i")] == ["prism.value"]
    assert copy.verify("p") == []
    with pytest.raises(NotFound):
        copy.verify("none")


def test_the_command_says_what_differs_and_fails(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALIMPSEST_DATABASE_URL", copy.url)
    runner = CliRunner()
    well = runner.invoke(app, ["verify", "--all"])
    assert (well.exit_code, well.stdout) == (0, "1 session verified: nothing differs\n")
    assert "s: log 24" in well.stderr
    copy.spoil("UPDATE chunk SET text = 'x' WHERE position = 5")
    spoilt = runner.invoke(app, ["verify", SESSION, "--json"])
    assert spoilt.exit_code == 1
    told = [json.loads(line) for line in spoilt.stdout.splitlines()]
    assert told[0]["name"] == "chunk.digest"
    assert told[0]["place"] == "position 5"
    assert runner.invoke(app, ["verify"]).exit_code == 1


def test_sums_and_entries_are_set_right_when_that_is_asked_for(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALIMPSEST_DATABASE_URL", copy.url)
    runner = CliRunner()
    copy.spoil("UPDATE spend_sum SET tokens = tokens + 1")
    copy.spoil("UPDATE tenant_spend_sum SET day_tokens = 0")
    copy.spoil(f"DELETE FROM memory_entry WHERE memory_id = {T} AND path = '0.2'")
    copy.spoil(f"UPDATE memory_entry SET words = '' WHERE memory_id = {T} AND path = '0.3'")
    spoilt = runner.invoke(app, ["verify", "--all"])
    assert spoilt.exit_code == 1
    assert "tenant default  spend, the tenant: its sum is off by" in spoilt.stdout
    assert "s  memory t, entry 0.2: it is not there (memory.entries)" in spoilt.stdout
    assert runner.invoke(app, ["verify", SESSION, "-m", "p", "--repair"]).exit_code == 1
    mended = runner.invoke(app, ["verify", "--all", "--repair"])
    assert mended.exit_code == 0, mended.output
    assert "tenant default: 1 sums set right" in mended.stderr
    assert f"{SESSION}: 2 entries set right" in mended.stderr
    well = runner.invoke(app, ["verify", "--all"])
    assert (well.exit_code, well.stdout) == (0, "1 session verified: nothing differs\n")
