"""Tests that an import writes nothing that the calls of the API refuse."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest

from service.app.kinds import use_cases
from service.domain.access.quotas import QuotaName
from service.domain.operations.transfer.blocks import BlockWriter, ExportPlace, Header, line_of
from service.domain.operations.transfer.records import VERSION
from service.domain.state.spec import StateSpec
from service.domain.tree.nodes import TextOffset
from service.domain.tree.spec import TreeSpec
from service.domain.values.errors import Exhausted, InvalidInput
from service.domain.values.memory_specs import MemorySpec
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.llm.gateway.allowed import AllowedModels
from service.rpc.convert.specs import check_spec
from service.settings.config import Config, Limits
from service.usecases.access import quotas as quotas_usecase
from service.usecases.access.quotas import QuotaGuard
from service.usecases.access.rate_limits import RateLimits
from service.usecases.operations.import_rules import MAX_SOURCE_RULES, ImportRules
from service.usecases.operations.importing import Importer
from service.usecases.tree.kind import LeafTexts
from storage.access import quotas
from storage.engine.database import Database, Transaction
from storage.log import chunks
from tests.integration.support.scripted import SPEC

AT = "2026-01-01T00:00:00Z"
Record = dict[str, Any]
SESSION: Record = {
    "record": "session",
    "language": "simple",
    "metadata": {},
    "default_memory": "none",
    "created_at": AT,
    "retention": {},
}


PRODUCER: Record = {"record": "producer", "producer_id": "p", "epoch": 1, "last_sequence": 9}


def chunk(position: int, **fields: Any) -> Record:
    own = {"position": position, "producer_sequence": position, "kind": "text", "text": "a"}
    own["producer_id"] = "p"
    return {"record": "chunk", **own, "created_at": AT, **fields}


def memory(name: str, kind: str, **spec: Any) -> Record:
    own = {"name": name, "kind": kind, "spec": spec, "digest": "00" * 32}
    return {"record": "memory", **own, "created_at": AT}


def answer(**fields: Any) -> Record:
    own = {"answer_id": str(uuid4()), "query": "q?", "status": "complete", "citations": []}
    places = {"revision": 0, "applied_position": 0}
    return {"record": "answer", **own, **places, "created_at": AT, "options": {}, **fields}


def block_of(writer: BlockWriter, records: Sequence[Mapping[str, Any]]) -> bytes:
    for one in records:
        writer.add(one)
    return writer.close(ExportPlace(kind="session"))


async def send(
    database: Database,
    *blocks: Sequence[Mapping[str, Any]],
    head: int = 1,
    memories: int = 0,
    rules: ImportRules | None = None,
    version: int = VERSION,
) -> None:
    """Imports blocks of records, without an end."""
    at = datetime.now(UTC)
    header = Header(session="s", export_id=uuid4(), exported_at=at, head=head, memories=memories)
    header = replace(header, version=version)
    importer = Importer(database, use_cases(), Limits(), rules)
    run = await importer.open(DEFAULT_TENANT, header.to_line(), "copy")
    writer = BlockWriter()
    for one in blocks:
        async for _ in run.feed(block_of(writer, one)):
            pass


async def refused(database: Database, *records: Record, said: str, **how: Any) -> None:
    with pytest.raises(InvalidInput, match=said) as found:
        await send(database, records, **how)
    assert found.value.reason is Reason.IMPORT_INVALID
    async with database.transaction(DEFAULT_TENANT) as tx:
        query = "SELECT line FROM session_import WHERE session_key = %s"
        rows = await tx.fetch(query, (session_key(DEFAULT_TENANT, "copy"),))
    assert rows[0][0] == 1, "nothing of the block is written"


async def test_what_calls_accept_is_written(database: Database) -> None:
    pairs = {f"k{number:063}": "é" * 1024 for number in range(16)}
    await send(
        database, [{**SESSION, "metadata": pairs}, PRODUCER, chunk(1, metadata=pairs), answer()]
    )


@pytest.mark.parametrize("of", ["session", "chunk"])
@pytest.mark.parametrize(
    "metadata",
    [{f"k{number}": "v" for number in range(17)}, {"": "v"}, {"k" * 65: "v"}, {"k": "v" * 1025}],
    ids=["pairs", "empty key", "long key", "long value"],
)
async def test_metadata_has_the_limits_of_the_api(
    database: Database, of: str, metadata: dict[str, str]
) -> None:
    record = {**SESSION, "metadata": metadata} if of == "session" else chunk(1, metadata=metadata)
    await refused(database, record, said=f"metadata is not that of a {of}")


async def test_a_pending_answer_is_refused(database: Database) -> None:
    await refused(database, SESSION, answer(status="pending"), said="line 3: the answer is pending")


def rule(source: str = "web", **fields: Any) -> Record:
    own = {"source": source, "trust": "blocked", "updated_at": AT}
    return {"record": "source_rule", **own, **fields}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"trust": "revered"}, "its level of trust is none"),
        ({"trust_before": "other"}, "its level of trust is none"),
        ({"trust": "trusted", "trust_before": "none"}, "quarantined is blocked"),
        ({"source": "w*b"}, "its source is none"),
        ({"source": "a/b"}, "it is no id"),
        ({"source": "w" * 257}, "it is no id"),
        ({"session_key": str(uuid4())}, "has no field 'session_key'"),
    ],
)
async def test_a_rule_that_no_call_could_set_is_refused(
    database: Database, fields: Record, said: str
) -> None:
    await refused(database, SESSION, rule(**fields), said=f"line 3: .*{said}")


async def test_each_rule_is_for_another_source(database: Database) -> None:
    await refused(database, SESSION, rule(), rule(), said="source_trust_pkey")


async def test_rules_are_bounded(database: Database) -> None:
    many = [rule(f"s{number}") for number in range(MAX_SOURCE_RULES + 1)]
    await refused(database, SESSION, *many, said=f"at most {MAX_SOURCE_RULES} rules")


async def test_a_file_of_version_1_has_no_rules(database: Database) -> None:
    await refused(database, SESSION, rule(), said="version 1 has no records", version=1)


class Quotas(RateLimits):
    """The quotas of a tenant, without Redis; notes the rates that are used."""

    def __init__(self) -> None:
        self.taken: Counter[QuotaName] = Counter()

    async def take(self, tenant_id: UUID, name: QuotaName, *, rate: int, needed: int) -> float:
        self.taken[name] += needed
        return 0.0


@pytest.mark.parametrize(
    ("name", "limit", "refused"),
    [
        (QuotaName.STORED_BYTES, 100, True),
        (QuotaName.STORED_BYTES, 101, False),
        (QuotaName.MEMORIES, 1, True),
        (QuotaName.MEMORIES, 2, False),
    ],
)
async def test_what_is_stored_counts_while_it_is_hidden(
    database: Database, monkeypatch: pytest.MonkeyPatch, name: QuotaName, limit: int, refused: bool
) -> None:
    monkeypatch.setattr(quotas_usecase, "COUNT_SECONDS", 0.0)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await quotas.write(tx, {name: limit})
    guard = QuotaGuard(database, Limits(), Quotas(), seconds=600)
    first = [SESSION, PRODUCER, chunk(1, text="x" * 100), memory("a", "tree")]
    rules = ImportRules(pace=guard.pace_import, memory_room=guard.memory_room)
    sending = send(database, first, [memory("b", "tree")], memories=2, rules=rules)
    if refused:
        with pytest.raises(Exhausted) as found:
            await sending
        assert found.value.metadata == {"quota": name.value, "limit": str(limit)}
    else:
        await sending


async def test_blocks_are_paced_by_the_rates(database: Database) -> None:
    rates = {QuotaName.CHUNKS_PER_SECOND: 10, QuotaName.BYTES_PER_SECOND: 10_000}
    async with database.transaction(DEFAULT_TENANT) as tx:
        await quotas.write(tx, rates)
    used = Quotas()
    guard = QuotaGuard(database, Limits(), used, seconds=600)
    lines = [[SESSION, PRODUCER, chunk(1)], [chunk(2), chunk(3)]]
    await send(database, *lines, head=3, rules=ImportRules(pace=guard.pace_import))
    size = sum(len(line_of(one)) for line in lines for one in line)
    assert used.taken == dict(zip(rates, (3, size), strict=True))


async def test_no_more_is_written_than_the_header_promises(database: Database) -> None:
    said = "promises 1 of 'chunk', and there are more"
    await refused(database, SESSION, PRODUCER, chunk(1), chunk(2), said=said)


async def test_no_more_memories_are_written_than_the_header_promises(database: Database) -> None:
    said = "promises 0 of 'memory', and there are more"
    await refused(database, SESSION, memory("a", "tree"), said=said)


SPECS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("tree", {"segment_tokens": "abc"}),
    "large": ("tree", {"segment_tokens": 10**30}),
    "zero": ("tree", {"segment_tokens": 0}),
    "one child": ("tree", {"max_children": 1}),
    "fraction": ("tree", {"summary_tokens": 100.5}),
    "flag": ("tree", {"reasoning": "yes"}),
    "model": ("tree", {"model": 7}),
    "address": ("tree", {"model": "openai/http://10.0.0.1/"}),
    "not allowed": ("tree", {"navigation_model": "openai/other"}),
    "period": ("state", {"period": 0}),
    "pinned": ("state", {"pinned": [7]}),
    "idle": ("state", {"idle_ms": 10**30}),
    "linger": ("prism", {"schema_source": SPEC.schema_source, "linger_ms": 10**15}),
    "schema": ("prism", {"schema_source": 7}),
    "tokens": ("prism", {"schema_source": SPEC.schema_source, "chunk_tokens": -1}),
}


@pytest.mark.parametrize("what", list(SPECS))
async def test_a_spec_that_no_call_accepts_is_refused(database: Database, what: str) -> None:
    kind, spec = SPECS[what]
    rules = ImportRules(check_spec=partial(check_spec, AllowedModels(Config())))
    record = memory("m", kind, **spec)
    await refused(database, SESSION, record, said="line 3: its spec", memories=1, rules=rules)


@pytest.mark.parametrize("spec", [TreeSpec(), StateSpec(), SPEC, replace(SPEC, linger_ms=-1)])
async def test_specs_of_earlier_releases_are_accepted(spec: MemorySpec) -> None:
    check_spec(AllowedModels(Config()), replace(spec, model=""))


def leaf(number: int, start: tuple[int, int], end: tuple[int, int]) -> Record:
    sizes = {"text_tokens": 1, "summary_tokens": 1, "first_child": 0, "children": 0}
    places: Record = {"start_position": start[0], "start_offset": start[1]}
    places |= {"end_position": end[0], "end_offset": end[1]}
    own = {"level": 0, "number": number, "revision": number, "summary": "s", "made": "model"}
    return {"record": "node", "memory": "t", **own, **sizes, **places, "created_at": AT}


@pytest.mark.parametrize(
    "ranges",
    [
        [((2, 0), (3, 0))],
        [((1, 0), (1, 0))],
        [((1, 0), (3, 0)), ((1, 0), (3, 0))],
        [((1, 0), (3, 0)), ((2, 0), (4, 0))],
    ],
)
async def test_leaves_that_overlap_are_refused(database: Database, ranges: list[Any]) -> None:
    before = [SESSION, PRODUCER, chunk(1), chunk(2), chunk(3), memory("t", "tree")]
    revisions = [
        {"record": "revision", "memory": "t", "revision": number, "kind": "step", "digest": "00"}
        | {"from_position": number - 1, "to_position": number, "created_at": AT}
        for number in range(1, len(ranges) + 1)
    ]
    leaves = [leaf(number, *one) for number, one in enumerate(ranges, 1)]
    said = "does not go on where the leaf before ended"
    await refused(database, *before, *revisions, *leaves, said=said, head=3, memories=1)


def noted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Notes the positions after which chunks are read."""
    read: list[int] = []

    async def noted(tx: Transaction, key: UUID, after: int, limit: int) -> Any:
        read.append(after)
        return await read_chunks(tx, key, after, limit)

    read_chunks = chunks.read
    monkeypatch.setattr(chunks, "read", noted)
    return read


async def test_the_log_under_a_forged_leaf_is_not_read_to_its_end(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = noted_reads(monkeypatch)
    log = [chunk(one, text="x" * 60_000) for one in range(1, 301)]
    await send(database, [SESSION, PRODUCER], log, head=300)
    async with database.transaction(DEFAULT_TENANT) as tx:
        key = session_key(DEFAULT_TENANT, "copy")
        assert await LeafTexts(tx, key).words(TextOffset(1), TextOffset(301)) == ""
    assert read == [0]


async def test_a_chunk_of_many_leaves_is_read_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = noted_reads(monkeypatch)
    await send(database, [SESSION, PRODUCER, chunk(1, text="abc"), chunk(2, text="de")], head=2)
    found = []
    async with database.transaction(DEFAULT_TENANT) as tx:
        texts = LeafTexts(tx, session_key(DEFAULT_TENANT, "copy"))
        offsets = [TextOffset(1), TextOffset(1, 1), TextOffset(1, 2), TextOffset(2, 1)]
        for start, end in pairwise([*offsets, TextOffset(3)]):
            found.append(await texts.words(start, end))
    assert found == ["a", "b", "cd", "e"]
    assert read == [0, 0]
