"""Redacting chunks: nothing that was derived from them is left, and memories are made again."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from service.app.kinds import memories_of, use_cases
from service.domain.log.chunks import Chunk
from service.domain.log.erasures import ErasureRequest
from service.domain.log.keeping_out import MAX_LENGTHS, KeepOutRules, Keyed
from service.domain.log.redactions import Redaction
from service.domain.memories.long_operations import OperationState
from service.domain.prompting.flows import ModelRequest, Purpose
from service.domain.values.errors import InvalidInput, NotFound
from service.domain.values.fault_hook import install
from service.domain.values.memory_specs import MemorySpec
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Limits
from service.usecases.log import sessions as session_usecase
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories import long_operations
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.operations import redacting
from service.usecases.operations.deleting import Deleter, Remover
from service.usecases.operations.redacting import RedactionRequest, RedactionResult, Redactor
from service.usecases.operations.verify import LocatedDifference, Verifier
from storage.engine.database import Database
from storage.log import chunks
from storage.log.selecting import Selection
from storage.log.sessions import StoredSession
from storage.memories import memories
from storage.memories.memories import StoredMemory
from tests.integration.support.scripted import (
    CONFIG,
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


class Crashed(Exception):
    """Ends what reaches a fault point."""


@contextmanager
def failing(name: str, step: str) -> Iterator[None]:
    """Crashes what reaches a step of a transaction."""

    def crash(reached: str) -> None:
        if reached == f"{name}:{step}":
            raise Crashed

    install(crash)
    try:
        yield
    finally:
        install(None)


def redactor(database: Database) -> Redactor:
    return Redactor(database, WakeUps(drop_wake_ups), b"token-key", max_chunks=100, max_rules=3)


async def redact(
    database: Database, *, keep_out: bool = False, **selection: Any
) -> RedactionResult:
    wanted = RedactionRequest(session="s", selection=Selection(**selection), keep_out=keep_out)
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
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await long_operations.find(tx, result.operation.operation.id)
    assert found.operation.state is OperationState.DONE
    assert isinstance(found.result, Redaction)
    assert found.result.removed["chunk.content"] == 1
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


@pytest.mark.parametrize(
    ("spec", "method_of"),
    [
        (SPEC, prism_method),
        (replace(TREE, segment_tokens=16), tree_method),
        (replace(STATE, period=2), state_method),
    ],
    ids=["prism", "tree", "state"],
)
async def test_a_step_under_way_writes_nothing_back(
    database: Database, spec: MemorySpec, method_of: Any
) -> None:
    script = Script(reply=echo)
    await create(database, spec)
    await append_texts(database, "s", TEXTS)
    redacted = asyncio.Event()

    async def meanwhile() -> None:
        # The model has the prompt with the chunk: its reply comes after the redaction.
        if SECRET in script.asked[-1].text and not redacted.is_set():
            redacted.set()
            await redact(database, text=SECRET)

    script.meanwhile = meanwhile
    method = method_of(database, script)
    await method.drain(ITEM)
    assert redacted.is_set()
    assert await tables_with(database, SECRET) == set()
    for _ in range(3):
        await method.drain(ITEM)
    assert (await stored_memory(database)).applied_position >= 5
    assert await tables_with(database, SECRET) == set()
    assert await differences(database) == []


class NotedWakeUps(WakeUps):
    """Keeps what it is to pass on, and whether the redaction was committed by then."""

    def __init__(self) -> None:
        super().__init__(drop_wake_ups)
        self.items: list[WorkItem] = []

    def add(self, items: Iterable[WorkItem], *, wanted: bool = False) -> None:
        self.items += items


async def test_workers_are_woken_once_it_is_committed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(database, SPEC)
    await append_texts(database, "s", TEXTS)
    await prism_method(database, Script(reply=echo)).drain(ITEM)
    noted = NotedWakeUps()
    redactor = Redactor(database, noted, b"key", max_chunks=9)
    wanted = RedactionRequest(session="s", selection=Selection(text=SECRET))
    with failing("redact", "commit"), pytest.raises(Crashed):
        await redactor.redact(DEFAULT_TENANT, wanted)
    assert noted.items == []
    # What is left for workers is theirs at once.
    monkeypatch.setattr(redacting, "OWN_BATCHES", 1)
    result = await redactor.redact(DEFAULT_TENANT, wanted)
    assert result.operation is not None
    removal = replace(
        ITEM, kind=WorkKind.REMOVAL, item_id=result.operation.operation.id.operation_id
    )
    assert noted.items == [ITEM, removal]


async def test_a_crash_before_the_commit_redacts_nothing(database: Database) -> None:
    await create(database, SPEC)
    await append_texts(database, "s", TEXTS)
    with failing("redact", "commit"), pytest.raises(Crashed):
        await redact(database, text=SECRET)
    assert "chunk" in await tables_with(database, SECRET)


async def test_workers_go_on_with_what_a_call_left(database: Database) -> None:
    script = Script(reply=echo)
    await create(database, SPEC)
    await append_texts(database, "s", TEXTS)
    await prism_method(database, script).drain(ITEM)
    with failing("removal", "commit"), pytest.raises(Crashed):
        await redact(database, text=SECRET)
    assert await tables_with(database, SECRET) == {"call"}, "clients do not read calls"
    async with database.transaction(DEFAULT_TENANT) as tx:
        ((redaction_id,),) = await tx.fetch("SELECT redaction_id FROM redaction")
    item = WorkItem(
        kind=WorkKind.REMOVAL, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=redaction_id
    )
    assert await Remover(database, CONFIG).remove(item) is None
    assert await tables_with(database, SECRET) == set()
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await tx.fetch("SELECT true FROM removal") == []


async def texts_of(database: Database) -> list[str]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return [one.chunk.text for one in await chunks.read(tx, KEY, 0, 100)]


async def test_what_is_kept_out_becomes_a_tombstone(database: Database) -> None:
    await create(database, SPEC)
    await append_texts(database, "s", ["one", f"say  {SECRET.upper()}, Code!", "three"])
    await redact(database, keep_out=True, text=f"{SECRET}, code")
    kept = [f"now {SECRET}  code again", f"{SECRET}s code", f"code {SECRET}", "four"]
    appended = await append_texts(database, "s", kept, first=4)
    assert appended.position == 7
    assert await texts_of(database) == ["one", "", "three", "", *kept[1:]]
    # Sent again, it is recognized by its digest.
    again = await append_texts(database, "s", kept, first=4)
    assert (again.first_position, again.position) == (4, 7)
    assert await differences(database) == []


async def test_appends_are_compared_beside_the_event_loop(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set[int]()
    find = KeepOutRules.find

    def noted(self: KeepOutRules, chunk: Chunk, keyed: Keyed) -> UUID | None:
        threads.add(threading.get_ident())
        return find(self, chunk, keyed)

    monkeypatch.setattr(KeepOutRules, "find", noted)
    await create(database, SPEC)
    await append_texts(database, "s", ["one", SECRET])
    await redact(database, keep_out=True, text=SECRET)
    await append_texts(database, "s", [f"again {SECRET}", "four"], first=3)
    assert await texts_of(database) == ["one", "", "", "four"]
    assert threads
    assert threading.get_ident() not in threads


async def test_chunks_that_are_kept_out_are_recognized_as_a_whole(database: Database) -> None:
    await create(database, SPEC)
    await append_texts(database, "s", ["one", "The Cipher is 7."])
    await redact(database, keep_out=True, ranges=[(2, 2)])
    said = ["the cipher is 7", "the cipher is 7, they say", "five"]
    await append_texts(database, "s", said, first=3)
    assert await texts_of(database) == ["one", "", "", *said[1:]]
    with pytest.raises(InvalidInput) as caught:
        await redact(database, keep_out=True, ranges=[(1, 5)])
    assert caught.value.reason is Reason.TOO_MANY_CHUNKS
    assert await texts_of(database) == ["one", "", "", *said[1:]]


async def test_a_text_that_no_chunk_has_is_kept_out_as_well(database: Database) -> None:
    await create(database, SPEC)
    await append_texts(database, "s", ["one", f"a {SECRET}"])
    await redact(database, text=SECRET)
    kept = await redact(database, text=SECRET, keep_out=True)
    assert (list(kept.positions), kept.kept_out) == ([], 1)
    assert kept.operation is not None
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await long_operations.find(tx, kept.operation.operation.id)
        ((kept_out,),) = await tx.fetch(
            "SELECT detail -> 'keep_out' FROM erasure WHERE completed_at IS NOT NULL"
            " ORDER BY requested_at DESC LIMIT 1"
        )
    assert found.operation.state is OperationState.DONE
    assert len(kept_out) == 1
    await append_texts(database, "s", [f"again {SECRET}", "four"], first=3)
    assert await texts_of(database) == ["one", "", "", "four"]
    assert await redact(database, text=SECRET, keep_out=True) == RedactionResult(positions=[])
    assert await differences(database) == []


async def test_what_has_no_content_any_more_cannot_be_kept_out(database: Database) -> None:
    await create(database, SPEC)
    await append_texts(database, "s", ["one", "the cipher is 7"])
    await redact(database, ranges=[(2, 2)])
    again = await redact(database, ranges=[(2, 2)], keep_out=True)
    assert again == RedactionResult(positions=[], kept_out=0)


async def test_phrases_have_few_different_numbers_of_words(database: Database) -> None:
    await create(database, SPEC)
    await append_texts(database, "s", ["one"])

    async def keep_out(words: int, mark: str, *, validate_only: bool = False) -> int:
        selection = Selection(text=" ".join([mark] * words))
        wanted = RedactionRequest(
            session="s", selection=selection, keep_out=True, validate_only=validate_only
        )
        able = Redactor(database, WakeUps(drop_wake_ups), b"key", max_chunks=9, max_rules=99)
        return (await able.redact(DEFAULT_TENANT, wanted)).kept_out

    for words in range(1, MAX_LENGTHS + 1):
        assert await keep_out(words, "xyz") == 1
    assert await keep_out(MAX_LENGTHS, "other") == 1
    for validate_only in (True, False):
        with pytest.raises(InvalidInput, match="at most 16 numbers of words") as caught:
            await keep_out(MAX_LENGTHS + 1, "xyz", validate_only=validate_only)
        assert (caught.value.reason, caught.value.field) == (Reason.TOO_MANY_CHUNKS, "keep_out")


async def test_too_many_chunks_are_refused(database: Database) -> None:
    await create(database, SPEC)
    await append_texts(database, "s", ["xyz"] * 101)
    with pytest.raises(InvalidInput) as caught:
        await redact(database, text="xyz")
    assert caught.value.reason is Reason.TOO_MANY_CHUNKS
    assert "" not in await texts_of(database)


@pytest.mark.parametrize("text", ["   ", " a ", "\u3000\u2003\t", "a  "])
async def test_a_text_that_any_chunk_contains_is_refused(database: Database, text: str) -> None:
    await create(database, SPEC)
    await append_texts(database, "s", ["a b c", "d"])
    with pytest.raises(InvalidInput) as caught:
        await redact(database, text=text)
    assert (caught.value.reason, caught.value.field) == (Reason.FIELD_INVALID, "text")
    assert await texts_of(database) == ["a b c", "d"]


class Meanwhile(Redactor):
    """Has something happen between the search of a redaction and its lock."""

    happens: Callable[[], Awaitable[object]]

    async def _found(self, tenant_id: UUID, matches: Any) -> tuple[StoredSession, Any]:
        found = await super()._found(tenant_id, matches)
        await self.happens()
        return found


async def redact_while(
    database: Database, happens: Callable[[], Awaitable[object]]
) -> RedactionResult:
    slow = Meanwhile(database, WakeUps(drop_wake_ups), b"token-key", max_chunks=9, max_rules=3)
    slow.happens = happens
    wanted = RedactionRequest(session="s", selection=Selection(text=SECRET), keep_out=True)
    return await slow.redact(DEFAULT_TENANT, wanted)


async def test_the_second_of_two_redactions_at_once_has_nothing_to_do(database: Database) -> None:
    await create(database, SPEC)
    await append_texts(database, "s", TEXTS)
    meanwhile = RedactionRequest(
        session="s", selection=Selection(text=SECRET, is_exact=True), keep_out=True
    )
    first = redactor(database)
    done = await redact_while(database, lambda: first.redact(DEFAULT_TENANT, meanwhile))
    assert done == RedactionResult(positions=[])
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await tx.fetch("SELECT true FROM removal") == []
        assert len(await tx.fetch("SELECT true FROM erasure")) == 1


async def test_a_session_that_is_made_anew_meanwhile_keeps_its_chunks(database: Database) -> None:
    await create(database, SPEC)
    await append_texts(database, "s", TEXTS)

    async def made_anew() -> None:
        deleter = Deleter(database, WakeUps(drop_wake_ups))
        await deleter.delete_session(DEFAULT_TENANT, "s", allow_missing=False)
        item = WorkItem(
            kind=WorkKind.REMOVAL, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=KEY
        )
        await Remover(database, CONFIG).remove(item)
        await session_usecase.create(database, DEFAULT_TENANT, "s", language="english")
        await append_texts(database, "s", ["one", "two", "three"])

    with pytest.raises(NotFound) as caught:
        await redact_while(database, made_anew)
    assert caught.value.reason is Reason.SESSION_NOT_FOUND
    assert await texts_of(database) == ["one", "two", "three"]
