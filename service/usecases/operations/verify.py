"""Verifies sessions: recomputes everything that follows from their logs, and compares it.

Each part is read in one snapshot, page by page, so that a session of any size is verified
beside the service that works on it.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID

from service.domain.operations.verifying.chain import Difference
from service.domain.operations.verifying.log import LogCheck
from service.domain.values.tenancy import memory_id, session_key
from service.usecases.log.lookup import memory_not_found, session_not_found
from service.usecases.memories.kinds import Findings, KindUseCases
from service.usecases.search.entry_index import EntryIndexer
from storage.engine.database import Database, Transaction
from storage.log import deleting, sessions
from storage.memories import entries, memories
from storage.operations import verifying
from storage.operations.verifying import SessionRow
from storage.spend import sums
from storage.spend.sums import SumOff

#: Chunks between two reports of progress.
PROGRESS_CHUNKS = 10_000
#: Sessions of one page of the list.
PAGE_SESSIONS = 200
#: The name of a difference that can be repaired.
SUM = "spend.sum"
#: The name of one of what searches find in memories, which can be repaired.
ENTRIES = "memory.entries"
#: The name of one that no removal is going to end.
LEFT = "deletion.rows"


@dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    """How far a verification is."""

    #: "log", "memory m", "answers", "index", "spend" or "deletions".
    part: str
    #: What was looked at so far: chunks, revisions, answers …
    count: int
    is_done: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class LocatedDifference:
    """A difference, and the part of the session that it is in."""

    part: str
    difference: Difference


class Verifier:
    """Compares what is stored of sessions with what follows from their logs."""

    def __init__(self, database: Database, kinds: Mapping[str, KindUseCases]) -> None:
        self._database = database
        self._kinds = kinds

    async def session_names(self, tenant_id: UUID) -> AsyncGenerator[str]:
        """Yields the names of all sessions, in order."""
        after = ""
        while True:
            async with self._database.transaction(tenant_id, name="verify") as tx:
                page = await sessions.list_after(tx, after, PAGE_SESSIONS)
            for one in page:
                yield one.name
            if len(page) < PAGE_SESSIONS:
                return
            after = page[-1].name

    async def verify(
        self, tenant_id: UUID, session: str, memory: str | None = None
    ) -> AsyncGenerator[LocatedDifference | Looked]:
        """Yields differences and progress as they are found; with `memory` of that one alone.

        Raises NotFound, StorageError.
        """
        key = session_key(tenant_id, session)
        names = await self._names(tenant_id, session, key, memory)
        if memory is None:
            async with aclosing(self._log(tenant_id, session)) as found:
                async for one in found:
                    yield one
        for name in names:
            part, count, is_right = f"memory {name}", 0, True
            async with self._database.snapshot(tenant_id, name="verify") as tx:
                checked = verify_memory(tx, self._kinds, key, memory_id(key, name))
                async with aclosing(checked) as differences:
                    async for difference in differences:
                        if isinstance(difference, int):
                            count = difference
                            yield Looked(part=part, count=count, is_done=False)
                        else:
                            is_right = False
                            yield LocatedDifference(part=part, difference=difference)
                # What follows from revisions that differ says nothing more.
                for difference in await self.wrong_entries(tx, key, name) if is_right else ():
                    yield LocatedDifference(part=part, difference=difference)
            yield Looked(part=part, count=count, is_done=True)
        if memory is None:
            for check in (self._answers, self._words, self._vectors, self._spend):
                async with aclosing(check(tenant_id, session)) as found:
                    async for one in found:
                        yield one

    async def verify_tenant(self, tenant_id: UUID) -> AsyncGenerator[LocatedDifference | Looked]:
        """Verifies what belongs to no session: the sums, and what is left of deleted sessions.

        Raises StorageError.
        """
        async with self._database.snapshot(tenant_id, name="verify") as tx:
            off = await sums.sums_off(tx, None)
            left = await deleting.leftovers(tx)
        for one in off:
            yield _sum_found("the tenant", one)
        yield Looked(part="spend", count=1, is_done=True)
        for key, table in left:
            said = f"it was deleted and has rows in {table} that no worker removes"
            yield _found("deletions", LEFT, f"session {key}", said)
        yield Looked(part="deletions", count=len(left), is_done=True)

    async def repair(self, tenant_id: UUID, session: str | None) -> None:
        """Repairs the sums of a session, or of the tenant, while the service runs.

        Raises StorageError.
        """
        async with self._database.transaction(tenant_id, name="verify") as tx:
            await sums.mend(tx, None if session is None else session_key(tenant_id, session))

    async def repair_entries(self, tenant_id: UUID, session: str) -> None:
        """Writes the entries of a session's memories again, while the service runs.

        Raises StorageError.
        """
        key = session_key(tenant_id, session)
        indexer = EntryIndexer(self._database, self._kinds)
        for name in await self._names(tenant_id, session, key, None):
            # Until no step comes between; what is written by then is not written once more.
            rewritten: set[UUID] = set()
            memory = memory_id(key, name)
            while not await indexer.rewrite(tenant_id, key, memory, rewritten=rewritten):
                pass

    async def _names(
        self, tenant_id: UUID, session: str, key: UUID, memory: str | None
    ) -> Sequence[str]:
        async with self._database.snapshot(tenant_id, name="verify") as tx:
            if await verifying.read_session(tx, key) is None:
                raise session_not_found(session)
            names = [name for _, name in await verifying.memory_ids(tx, key)]
        if memory is not None and memory not in names:
            raise memory_not_found(session, memory)
        return names if memory is None else [memory]

    async def _spend(
        self, tenant_id: UUID, session: str
    ) -> AsyncGenerator[LocatedDifference | Looked]:
        key = session_key(tenant_id, session)
        async with self._database.snapshot(tenant_id, name="verify") as tx:
            names = dict(await verifying.memory_ids(tx, key))
            # Calls of a memory that is removed become the session's, and then its sums do.
            is_moving = await deleting.is_being_removed(tx, key)
            days = () if is_moving else await sums.days_off(tx, key)
            off = () if is_moving else await sums.sums_off(tx, key)
        for day in days:
            place = f"{_owner(names, key, day.owner_id)} on {day.day}"
            said = f"it is off by {-(day.calls + day.failed_calls):+,} calls,"
            said += f" {-day.tokens:+,} tokens and {-day.micro_usd:+,} micro-dollars"
            yield _found("spend", "spend.day", place, said)
        for one in off:
            yield _sum_found(_owner(names, key, one.owner_id), one)
        yield Looked(part="spend", count=len(names) + 1, is_done=True)

    async def _log(
        self, tenant_id: UUID, session: str
    ) -> AsyncGenerator[LocatedDifference | Looked]:
        key = session_key(tenant_id, session)
        check = LogCheck()
        async with self._database.snapshot(tenant_id, name="verify") as tx:
            async for logged, digest in verifying.chunks(tx, key):
                for difference in check.chunk(logged, digest):
                    yield LocatedDifference(part="log", difference=difference)
                if logged.position % PROGRESS_CHUNKS == 0:
                    yield Looked(part="log", count=logged.position, is_done=False)
            row = await _session(tx, session)
            producers = await verifying.producers(tx, key)
            for difference in check.finish(
                head=row.head, content_bytes=row.content_bytes, producers=producers
            ):
                yield LocatedDifference(part="log", difference=difference)
            for request_id, first, last in await verifying.wrong_requests(tx, key):
                said = f"its chunks are not those at positions {first} to {last}"
                yield _found("log", "request.chunks", f"request {request_id!r}", said)
        yield Looked(part="log", count=check.position, is_done=True)

    async def _answers(
        self, tenant_id: UUID, session: str
    ) -> AsyncGenerator[LocatedDifference | Looked]:
        key = session_key(tenant_id, session)
        count = 0
        async with self._database.snapshot(tenant_id, name="verify") as tx:
            async for looked, wrong in verifying.wrong_citations(tx, key):
                count += looked
                for answer_id, position, node in wrong:
                    said = f"it cites position {position}"
                    said += f" of {node}, and that is not there" if node else ", which is not there"
                    yield _found("answers", "answer.citation", f"answer {answer_id}", said)
        yield Looked(part="answers", count=count, is_done=True)

    async def _words(
        self, tenant_id: UUID, session: str
    ) -> AsyncGenerator[LocatedDifference | Looked]:
        key = session_key(tenant_id, session)
        async with self._database.snapshot(tenant_id, name="verify") as tx:
            row = await _session(tx, session)
            if row.indexed_position > row.head:
                said = f"words are indexed up to {row.indexed_position}, after the head {row.head}"
                yield _found("index", "index.position", "session", said)
            last = min(row.indexed_position, row.head)
            async for _, wrong in verifying.words(tx, key, last):
                for position, missing in wrong:
                    said = "it has no words" if missing else "its words are not those of its text"
                    yield _found("index", "index.words", f"position {position}", said)
            async for first, end, said in verifying.lists(tx, key, last):
                yield _found("index", "index.lists", f"positions {first} to {end}", said)
        yield Looked(part="index of words", count=last, is_done=True)

    async def _vectors(
        self, tenant_id: UUID, session: str
    ) -> AsyncGenerator[LocatedDifference | Looked]:
        key = session_key(tenant_id, session)
        async with self._database.snapshot(tenant_id, name="verify") as tx:
            row = await _session(tx, session)
            last = min(row.embedded_position, row.head)
            async for wrong in verifying.vectors(tx, key, last, row.embedding_model):
                for position, said in wrong:
                    place = f"position {position}"
                    yield _found("index", "index.vectors", place, f"of its vectors {said}")
        yield Looked(part="index of vectors", count=last, is_done=True)

    async def wrong_entries(
        self, tx: Transaction, session_key: UUID, name: str
    ) -> Sequence[Difference]:
        """Compares a memory's entries with those of its revisions. `tx` is a snapshot."""
        key = (session_key, memory_id(session_key, name))
        stored = await memories.get(tx, *key)
        if stored is None or await verifying.lacks_entries(tx, *key):
            # Workers write what the release before did not.
            return ()
        made = await self._kinds[stored.kind].entries(tx, stored)
        found = {one.entry.entry_id: one for one in await entries.read_all(tx, *key)}
        wrong = [
            (one.entry.path, "it is not there" if one.entry.entry_id not in found else "it differs")
            for one in made
            if found.pop(one.entry.entry_id, None) != one
        ]
        wrong += [(one.entry.path, "there is nothing") for one in found.values()]
        texts = [(one.entry.entry_id, one.entry.text) for one in made]
        for path in await verifying.wrong_words_of_entries(tx, *key, texts):
            wrong.append((path, "its words are not those of its text"))
        return [Difference(name=ENTRIES, place=f"entry {path}", said=said) for path, said in wrong]


async def _session(tx: Transaction, session: str) -> SessionRow:
    row = await verifying.read_session(tx, session_key(tx.tenant_id, session))
    if row is None:
        # It was deleted since it was looked up.
        raise session_not_found(session)
    return row


def _owner(names: Mapping[UUID, str], session_key: UUID, owner_id: UUID) -> str:
    return "session" if owner_id == session_key else f"memory {names.get(owner_id, owner_id)}"


async def verify_memory(
    tx: Transaction, kinds: Mapping[str, KindUseCases], session_key: UUID, memory_id: UUID
) -> Findings:
    """Yields what differs in a memory. `tx` is a snapshot."""
    try:
        stored = await memories.get(tx, session_key, memory_id)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        # Only of a row that the service did not write: then it may be anything.
        yield Difference(name="memory.spec", place="memory", said=f"it cannot be read: {error}")
        return
    if stored is None:
        said = "its id is not that of its name"
        yield Difference(name="memory.name", place="memory", said=said)
        return
    async with aclosing(kinds[stored.kind].verify(tx, stored)) as differences:
        async for one in differences:
            yield one


def _sum_found(place: str, off: SumOff) -> LocatedDifference:
    said = f"its sum is off by {-off.tokens:+,} tokens and {-off.micro_usd:+,} micro-dollars,"
    said += f" for {off.day} by {-off.day_tokens:+,} and {-off.day_micro_usd:+,}"
    return _found("spend", SUM, place, said)


def _found(part: str, name: str, place: str, said: str) -> LocatedDifference:
    return LocatedDifference(part=part, difference=Difference(name=name, place=place, said=said))
