"""Asking: a question is stored, a worker answers it, the caller hears when."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID, uuid4

from service.domain.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
)
from service.domain.reasons import Reason
from service.domain.specs import MemoryKind, kind_of
from service.domain.tenancy import session_key
from service.domain.trajectory import (
    Event,
)
from service.domain.tree.asked import NavigationRequest
from service.domain.work import WorkItem, WorkKind
from service.usecases.consistency import (
    Consistency,
    Watcher,
    not_applied_in_time,
    refuse_stopped,
)
from service.usecases.hints import Hints
from service.usecases.lookup import find_memory, refuse_unnavigable, session_not_found
from service.usecases.waiting import WaitingRoom
from storage import answers, calls, sessions
from storage.answers import StoredAnswer
from storage.calls import UsageLine
from storage.database import Database, Transaction
from storage.memories import StoredMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is asked of which memory."""

    session: str
    memory: str
    query: str
    consistency: Consistency
    #: For trees and state memories; None: a tree is navigated as it is when nobody says, a
    #: state memory is asked without.
    navigation: NavigationRequest | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """The memory is not yet as far as asked."""

    applied_position: int
    wanted_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The answer is being made from this state."""

    answer_id: UUID
    revision: int
    applied_position: int
    #: Whether it is found by a navigation, which is told event by event.
    navigates: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """A stored answer and what it cost."""

    answer: StoredAnswer
    usage: tuple[UsageLine, ...]


class Asker:
    """Takes questions in one server process."""

    def __init__(
        self,
        database: Database,
        hints: Hints,
        watcher: Watcher,
        token_key: bytes,
        waiting: WaitingRoom,
    ) -> None:
        self._database = database
        self._hints = hints
        self._watcher = watcher
        self._token_key = token_key
        self._waiting = waiting

    async def ask(
        self, tenant_id: UUID, question: Question, *, deadline: float | None
    ) -> AsyncGenerator[Waiting | Reading | Event | Answered]:
        """Waits until the memory is fresh enough, then for the answer, and says so.

        Of a navigation it also tells each event as it happens.
        `deadline` is in the event loop's time. Raises NotFound, InvalidInput (token),
        FailedPrecondition (stalled; another kind; answer failed), DeadlineExceeded,
        Exhausted.
        """
        with self._waiting.place():
            async with aclosing(self._until_fresh(tenant_id, question, deadline)) as waits:
                async for waiting in waits:
                    yield waiting
            reading = await self._store(tenant_id, question)
            yield reading
            async with aclosing(
                self._until_settled(tenant_id, question, reading, deadline)
            ) as told:
                async for event in told:
                    yield event
            yield await self._answered(tenant_id, question, reading)

    async def get(self, tenant_id: UUID, session: str, answer_id: UUID) -> Answered:
        """Reads a stored answer. Raises NotFound."""
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id) as tx:
            stored = await answers.get(tx, key, answer_id)
            if stored is None:
                raise await answer_not_found(tx, session, answer_id)
            usage = await calls.usage(tx, key, occasion=occasion(answer_id))
        return Answered(answer=stored, usage=tuple(usage))

    async def _until_fresh(
        self, tenant_id: UUID, question: Question, deadline: float | None
    ) -> AsyncGenerator[Waiting]:
        stored = await self._memory(tenant_id, question)
        _navigation(question, stored)
        wanted = question.consistency.wanted_position(
            self._token_key, stored.session_key, head=stored.head, incarnation=stored.incarnation
        )
        if stored.applied_position >= wanted or kind_of(stored.spec) is MemoryKind.STATE:
            return
        key = (stored.session_key, stored.memory_id)
        applied, revision = stored.applied_position, stored.revision
        async with aclosing(self._watcher.progress(tenant_id, key, deadline=deadline)) as seen:
            async for progress in seen:
                refuse_stopped(question.memory, wanted, progress)
                if progress.applied_position >= wanted:
                    return
                applied, revision = progress.applied_position, progress.revision
                yield Waiting(applied_position=applied, wanted_position=wanted)
        raise not_applied_in_time(question.memory, wanted, applied, revision)

    async def _memory(self, tenant_id: UUID, question: Question) -> StoredMemory:
        async with self._database.transaction(tenant_id) as tx:
            return await find_memory(tx, question.session, question.memory)

    async def _store(self, tenant_id: UUID, question: Question) -> Reading:
        key = session_key(tenant_id, question.session)
        answer_id = uuid4()
        async with self._database.transaction(tenant_id) as tx:
            stored = await find_memory(tx, question.session, question.memory)
            navigation = _navigation(question, stored)
            applied_position = _applied_position(stored)
            await answers.create(
                tx,
                session_key=key,
                answer_id=answer_id,
                memory_id=stored.memory_id,
                query=question.query,
                revision=stored.revision,
                applied_position=applied_position,
                navigation=navigation,
            )
        self._hints.add([_item(tenant_id, question.session, answer_id)])
        return Reading(
            answer_id=answer_id,
            revision=stored.revision,
            applied_position=applied_position,
            navigates=navigation is not None,
        )

    async def _until_settled(
        self, tenant_id: UUID, question: Question, reading: Reading, deadline: float | None
    ) -> AsyncGenerator[Event]:
        """The events of the answer until it is made. Raises DeadlineExceeded."""
        item = _item(tenant_id, question.session, reading.answer_id)
        settled = False
        if reading.navigates:
            async with aclosing(self._watcher.told(item, deadline=deadline)) as looks:
                async for told in looks:
                    for event in told.events:
                        yield event
                    settled = told.settled
        else:
            settled = await self._watcher.settled(item, deadline=deadline)
        if not settled:
            raise DeadlineExceeded(
                Reason.ANSWER_NOT_READY_IN_TIME,
                "the answer is still being made; it will be stored",
                {"answer": reading.answer_id},
            )

    async def _answered(self, tenant_id: UUID, question: Question, reading: Reading) -> Answered:
        answered = await self.get(tenant_id, question.session, reading.answer_id)
        if answered.answer.status == "failed":
            raise FailedPrecondition(
                Reason.ANSWER_FAILED,
                f"no answer could be made: {answered.answer.failure}",
                {"answer": reading.answer_id, "cause": answered.answer.failure},
            )
        return answered


async def answer_not_found(tx: Transaction, session: str, answer_id: UUID) -> NotFound:
    """The refusal of an answer that is not there: it, or its session."""
    if await sessions.get(tx, session_key(tx.tenant_id, session)) is None:
        return session_not_found(session)
    return NotFound(
        Reason.ANSWER_NOT_FOUND,
        f"session {session!r} has no answer {answer_id}",
        {"answer": answer_id},
    )


def _navigation(question: Question, stored: StoredMemory) -> NavigationRequest | None:
    """How to navigate; None: not at all. Raises FailedPrecondition (another kind)."""
    if question.navigation is not None:
        refuse_unnavigable(question.memory, stored.spec)
        return question.navigation
    return NavigationRequest() if kind_of(stored.spec) is MemoryKind.TREE else None


def _applied_position(stored: StoredMemory) -> int:
    """The last position that an answer reads: of a state memory, which has the whole log at
    any time, the head of this moment."""
    return stored.head if kind_of(stored.spec) is MemoryKind.STATE else stored.applied_position


def _item(tenant_id: UUID, session: str, answer_id: UUID) -> WorkItem:
    return WorkItem(
        kind=WorkKind.ANSWER,
        tenant_id=tenant_id,
        session_key=session_key(tenant_id, session),
        item_id=answer_id,
    )


def occasion(answer_id: UUID) -> str:
    """The occasion of an answer's model calls, as the ledger names it."""
    return f"answer:{answer_id}"
