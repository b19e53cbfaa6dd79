"""Redacting chunks: nothing that was derived from them is left, and memories are made again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from service.app.kinds import memories_of, use_cases
from service.domain.log.erasures import ErasureRequest
from service.domain.memories.long_operations import OperationState
from service.domain.prompting.flows import ModelRequest, Purpose
from service.domain.values.memory_specs import MemorySpec
from service.domain.values.tenancy import DEFAULT_TENANT
from service.settings.config import Limits
from service.usecases.log import sessions as session_usecase
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.operations.redacting import RedactionRequest, RedactionResult, Redactor
from service.usecases.operations.verify import LocatedDifference, Verifier
from storage.engine.database import Database
from storage.log.selecting import Selection
from storage.memories import memories
from storage.memories.memories import StoredMemory
from tests.integration.support.scripted import (
    ITEM,
    KEY,
    MEMORY,
    SPEC,
    STATE,
    TREE,
    Script,
    prism_method,
    state_method,
    tree_method,
)
from tests.integration.support.writing import append_texts, drop_wake_ups

SECRET = "zanzibar"


def redactor(database: Database) -> Redactor:
    return Redactor(database, WakeUps(drop_wake_ups), b"token-key", max_chunks=100)


async def redact(database: Database, **selection: object) -> RedactionResult:
    wanted = RedactionRequest(session="s", selection=Selection(**selection))  # type: ignore[arg-type]
    request = ErasureRequest(principal="key:1", reason="asked for")
    return await redactor(database).redact(DEFAULT_TENANT, wanted, request)


async def tables_with(database: Database, text: str) -> set[str]:
    """Returns the tables that have a text anywhere, hidden rows among them."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute("SET LOCAL app.removing = 'on'")
        names = await tx.fetch(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relrowsecurity"
            " AND relnamespace = 'public'::regnamespace"
            " AND has_table_privilege(oid, 'SELECT')"
        )
        found = set()
        for (name,) in names:
            rows = await tx.fetch(
                f"SELECT count(*) FROM {name} t WHERE t::text ILIKE %(like)s", {"like": f"%{text}%"}
            )
            if rows[0][0]:
                found.add(name)
    return found


def echo(ask: ModelRequest, number: int) -> str:
    """Repeats what the prompt says of the secret and of its twin."""
    text = ask.text
    said = " ".join(word for word in (SECRET, "twin") if word in text)
    if ask.purpose is Purpose.REVISE:
        return f'[OBJECTS FOR ADD]\n{{"$.topics.t{number}": {{"add": "{said} {number}"}}}}'
    return f"{said} seen"


async def differences(database: Database) -> Sequence[str]:
    verifier = Verifier(database, use_cases())
    found = [one async for one in verifier.verify(DEFAULT_TENANT, "s")]
    return [str(one) for one in found if isinstance(one, LocatedDifference)]


async def stored_memory(database: Database) -> StoredMemory:
    async with database.transaction(DEFAULT_TENANT) as tx:
        stored = await memories.get(tx, KEY, MEMORY)
    assert stored is not None
    return stored


async def create(database: Database, spec: MemorySpec) -> None:
    """Creates the session and its memory as clients do, so that all of it verifies."""
    await session_usecase.create(database, DEFAULT_TENANT, "s", language="english")
    made = memories_of(
        database, WakeUps(drop_wake_ups), ProgressWatcher(database), b"key", Limits()
    )
    await made.create(DEFAULT_TENANT, "s", "m", spec)


TEXTS = [
    f"{text} and so on, at some length, until there is enough for a segment of its own. "
    for text in ("a twin", "b", f"the {SECRET} code", "d", "e twin", "f", "g")
]


@pytest.mark.parametrize(
    ("spec", "method_of", "made"),
    [
        (SPEC, prism_method, {"amendment", "prism_value"}),
        (replace(TREE, segment_tokens=16), tree_method, {"tree_node"}),
        (replace(STATE, period=2), state_method, {"state_vector"}),
    ],
    ids=["prism", "tree", "state"],
)
async def test_a_memory_loses_what_it_wrote_since_and_reads_on(
    database: Database, spec: MemorySpec, method_of: Any, made: set[str]
) -> None:
    script = Script(reply=echo)
    await create(database, spec)
    method = method_of(database, script)
    await append_texts(database, "s", TEXTS)
    await method.drain(ITEM)
    before = await stored_memory(database)
    assert await tables_with(database, SECRET) >= {"chunk", "call", *made}
    assert await differences(database) == []
    result = await redact(database, text="ZANZIBAR")
    assert list(result.positions) == [3]
    assert result.operation is not None
    assert result.operation.operation.state is OperationState.DONE
    assert await tables_with(database, SECRET) == set()
    after = await stored_memory(database)
    assert after.revision == before.revision + 1
    assert after.applied_position < 3
    assert await differences(database) == []
    await method.drain(ITEM)
    read = await stored_memory(database)
    assert read.applied_position == before.applied_position
    assert await tables_with(database, SECRET) == set()
    assert await tables_with(database, "twin") >= made
    assert await differences(database) == []
