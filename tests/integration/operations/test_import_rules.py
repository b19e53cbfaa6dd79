"""Tests that an import writes nothing that the calls of the API refuse."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from service.app.kinds import use_cases
from service.domain.operations.transfer.blocks import BlockWriter, ExportPlace, Header
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Limits
from service.usecases.operations.import_rules import ImportRules
from service.usecases.operations.importing import Importer
from storage.engine.database import Database

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
) -> None:
    """Imports blocks of records, without an end."""
    at = datetime.now(UTC)
    header = Header(session="s", export_id=uuid4(), exported_at=at, head=head, memories=memories)
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
