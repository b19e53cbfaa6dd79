"""Accepts questions: stores each, waits for the worker that answers it, and streams events."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID, uuid4

from service.domain.answers.answer_updates import Listener, TextPiece
from service.domain.answers.trajectory import Event
from service.domain.values.errors import (
    Cancelled,
    DeadlineExceeded,
    Exhausted,
    FailedPrecondition,
    NotFound,
)
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Limits
from service.telemetry import tracing
from service.usecases.answers.interest import Interest, Wait
from service.usecases.answers.questions import OF_LOG, Question, ReadPlan, Source, naming, take
from service.usecases.log.concurrency_limiter import ConcurrencyLimiter
from service.usecases.log.lookup import find_memory, item_key, memory_not_found, session_not_found
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.consistency import not_applied_in_time, progress_of, refuse_stopped
from service.usecases.memories.on_demand import too_many_pending
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.answers import answers
from storage.answers.answers import StoredAnswer
from storage.calls import calls
from storage.calls.calls import UsageLine
from storage.engine import trace_contexts
from storage.engine.database import Database, Transaction
from storage.log import sessions
from storage.memories import flushing, job_results, waiting


@dataclass(frozen=True, kw_only=True, slots=True)
class AskWaiting:
    """The memory is not yet as far as asked."""

    applied_position: int
    wanted_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AskStarted:
    """The answer is being made from this state."""

    session_key: UUID
    incarnation: int
    answer_id: UUID
    #: 0 without a memory.
    revision: int
    applied_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AskDone:
    """A stored answer and what it cost."""

    answer: StoredAnswer
    usage: tuple[UsageLine, ...]


#: What a client receives of a question.
AskEvent = AskWaiting | AskStarted | Event | TextPiece | AskDone


@dataclass(frozen=True, kw_only=True, slots=True)
class Behind:
    """A question that waits for its memory; nothing is stored of it."""

    source: Source
    taken: ReadPlan


Begun = AskStarted | Behind


class Asker:
    """Accepts questions in one server process."""

    def __init__(
        self,
        database: Database,
        wake_ups: WakeUps,
        watcher: ProgressWatcher,
        token_key: bytes,
        waiting: ConcurrencyLimiter,
        interest: Interest,
        *,
        max_pending: int = Limits().max_pending_answers,
    ) -> None:
        """At most `max_pending` answers of a tenant are pending at once."""
        self._database = database
        self._wake_ups = wake_ups
        self._watcher = watcher
        self._token_key = token_key
        self._waiting = waiting
        self._interest = interest
        self._max_pending = max_pending

    async def ask(
        self, tenant_id: UUID, question: Question, *, deadline: float | None
    ) -> AsyncGenerator[AskEvent]:
        """Waits until the memory is fresh enough, then for the answer, and yields both.

        Yields each event of the reader as it happens, and the text if wanted. `deadline` is
        in the event loop's time. Raises NotFound, InvalidInput, FailedPrecondition (stalled;
        another kind; answer failed), Cancelled, DeadlineExceeded, Exhausted.
        """
        question.check()
        with self._waiting.slot():
            (begun,) = await self.begin(tenant_id, [question])
            async with aclosing(self.go_on(tenant_id, question, begun, deadline)) as told:
                async for event in told:
                    yield event

    async def resume(
        self,
        tenant_id: UUID,
        session: str,
        answer_id: UUID,
        *,
        after_event: int,
        after_piece: int,
        deadline: float | None,
    ) -> AsyncGenerator[Event | TextPiece | AskDone]:
        """Yields what follows the last event and the last piece of text that the client has, and
        the answer. Raises as `ask`."""
        item = _item(tenant_id, session_key(tenant_id, session), answer_id)
        with self._waiting.slot(), self._interest.wait(item) as call:
            try:
                stored = await self._join(item, session)
            except NotFound:
                # No departure is written of an answer that is not there.
                call.ended = True
                raise
            listener = Listener(
                item=item,
                event=after_event,
                piece=after_piece,
                hears_text=stored.tells_text,
            )
            async with aclosing(self._follow(session, listener, call, deadline)) as told:
                async for event in told:
                    yield event

    async def look_up(self, tenant_id: UUID, session: str, answer_id: UUID) -> AskDone:
        """Reads a stored answer; one that is pending is wanted for a while. Raises NotFound."""
        found = await self._get(tenant_id, session, answer_id)
        stored = found.answer
        if stored.status == "pending" and stored.wanted_until is not None:
            async with self._database.transaction(tenant_id, name="ask") as tx:
                await self._interest.want(tx, (stored.session_key, answer_id), resumes=False)
            if stored.is_left:
                self._wake_ups.add([_item(tenant_id, stored.session_key, answer_id)])
        return found

    async def _get(self, tenant_id: UUID, session: str, answer_id: UUID) -> AskDone:
        key = session_key(tenant_id, session)
        async with self._database.direct(tenant_id, name="ask") as direct:
            found = await answers.read(direct, key, answer_id, occasion(answer_id))
        if found is None:
            async with self._database.transaction(tenant_id, name="ask") as tx:
                raise await answer_not_found(tx, session, answer_id)
        return AskDone(answer=found[0], usage=found[1])

    async def _join(self, item: WorkItem, session: str) -> StoredAnswer:
        """Returns the answer, which goes on if it was abandoned. Raises NotFound."""
        async with self._database.transaction(item.tenant_id, name="ask") as tx:
            stored = await answers.get(tx, item.session_key, item.item_id)
            if stored is None:
                raise await answer_not_found(tx, session, item.item_id)
            if stored.status in job_results.OPEN:
                await self._interest.want(tx, (item.session_key, item.item_id), resumes=True)
        if stored.status == "abandoned" or (stored.status == "pending" and stored.is_left):
            self._wake_ups.add([item])
        return stored

    async def begin(
        self, tenant_id: UUID, questions: Sequence[Question], *, waited: bool = False
    ) -> Sequence[Begun]:
        """Stores the questions to one session, all or none; not those that have to wait.

        Raises NotFound, InvalidInput (token), FailedPrecondition, Exhausted.
        """
        begun: list[Begun] = []
        asking = tracing.sampled()
        async with self._database.transaction(tenant_id, name="ask.begin") as tx:
            sources = await _sources(tx, questions)
            for number, question in enumerate(questions):
                source = sources[question.memory]
                with naming(number, of=len(questions)):
                    taken = take(question, source, self._token_key)
                if taken.fresh or waited:
                    reading = await self._store(tx, question, source, taken)
                    begun.append(reading)
                    if asking is not None:
                        key = source.session_key
                        await trace_contexts.add(tx, key, reading.answer_id, 0, asking)
                else:
                    begun.append(Behind(source=source, taken=taken))
            woken = [] if waited else await _end_waits(tx, questions, sources)
        key = session_key(tenant_id, questions[0].session)
        self._wake_ups.add_memories(tenant_id, ((key, one) for one in woken), wanted=True)
        self._wake_ups.add(
            _item(tenant_id, key, one.answer_id) for one in begun if isinstance(one, AskStarted)
        )
        return begun

    async def go_on(
        self, tenant_id: UUID, question: Question, begun: Begun, deadline: float | None
    ) -> AsyncGenerator[AskEvent]:
        """Yields the events of a question that has begun. Raises as `ask`."""
        if isinstance(begun, Behind):
            async with aclosing(self._until_fresh(tenant_id, question, begun, deadline)) as waits:
                async for waiting in waits:
                    yield waiting
            (begun,) = await self.begin(tenant_id, [question], waited=True)
        assert isinstance(begun, AskStarted), "it has waited"
        key = session_key(tenant_id, question.session)
        item = _item(tenant_id, key, begun.answer_id)
        listener = Listener(item=item, hears_text=question.tells_text)
        with self._interest.wait(item) as call:
            yield begun
            async with aclosing(self._follow(question.session, listener, call, deadline)) as told:
                async for event in told:
                    yield event

    async def _until_fresh(
        self, tenant_id: UUID, question: Question, behind: Behind, deadline: float | None
    ) -> AsyncGenerator[AskWaiting]:
        stored, wanted = behind.source.memory, behind.taken.wanted_position
        assert stored is not None, "the log is never behind itself"
        progress = progress_of(stored)
        looks = self._watcher.progress(
            tenant_id,
            item_key(stored),
            deleted=memory_not_found(question.session, question.memory),
            deadline=deadline,
            is_wanted=True,
        )
        async with aclosing(looks) as seen:
            async for progress in seen:
                refuse_stopped(question.memory, wanted, progress)
                if progress.applied_position >= wanted:
                    return
                yield AskWaiting(applied_position=progress.applied_position, wanted_position=wanted)
        raise not_applied_in_time(question.memory, wanted, progress)

    async def _follow(
        self, session: str, listener: Listener, call: Wait, deadline: float | None
    ) -> AsyncGenerator[Event | TextPiece | AskDone]:
        """Yields the events of an answer until it is made, and the answer."""
        answer_id = listener.item.item_id
        looks = self._watcher.told(
            listener, deleted=_no_answer(session, answer_id), deadline=deadline
        )
        async with aclosing(looks) as seen:
            async for told in seen:
                call.ended = told.settled
                for event in told.events:
                    yield event
                for piece in told.pieces:
                    yield piece
        if not call.ended:
            raise await self._not_ready(listener.item)
        answered = await self._get(listener.item.tenant_id, session, answer_id)
        refuse_ended(answered.answer)
        yield answered

    async def _not_ready(self, item: WorkItem) -> DeadlineExceeded:
        """Returns the error of a question whose deadline came first."""
        async with self._database.transaction(item.tenant_id, name="ask") as tx:
            cause = await waiting.find_cause(tx, item)
        why = "is still being made" if cause is None else f"waits for its model: {cause}"
        metadata = {"answer": item.item_id} | ({} if cause is None else {"cause": cause})
        return DeadlineExceeded(
            Reason.ANSWER_NOT_READY_IN_TIME,
            f"the answer {why}; resume it with its id {item.item_id}",
            metadata,
        )

    async def _store(
        self, tx: Transaction, question: Question, source: Source, taken: ReadPlan
    ) -> AskStarted:
        answer_id, attended = uuid4(), not question.unattended
        stored = await answers.create(
            tx,
            session_key=source.session_key,
            answer_id=answer_id,
            memory_id=None if source.memory is None else source.memory.memory_id,
            query=question.query,
            revision=taken.revision,
            applied_position=taken.applied_position,
            wanted_position=taken.wanted_position,
            navigation=taken.navigation,
            reader=taken.reader,
            browsing=question.browsing,
            model=question.model,
            response_schema=question.response_schema,
            tells_text=question.tells_text,
            options=question.options,
            chunk_filter=None if question.filter is None else question.filter.to_json(),
            waiter=self._interest.waiter if attended else None,
            wanted_seconds=self._interest.seconds if attended else None,
            max_pending=self._max_pending,
        )
        if not stored:
            raise too_many_pending("answers", self._max_pending)
        return AskStarted(
            session_key=source.session_key,
            incarnation=source.incarnation,
            answer_id=answer_id,
            revision=taken.revision,
            applied_position=taken.applied_position,
        )


def refuse_ended(stored: StoredAnswer) -> None:
    """Raises the error of an answer that failed, Cancelled for one that was."""
    if stored.status == "failed":
        raise failure_of(stored)
    if stored.status == "cancelled":
        raise Cancelled(
            Reason.ANSWER_CANCELLED,
            f"answer {stored.answer_id} was cancelled: ask again",
            {"answer": stored.answer_id},
        )


def failure_of(stored: StoredAnswer) -> FailedPrecondition | Exhausted:
    """Returns the error of an answer that failed."""
    said = f"no answer could be made: {stored.failure}"
    if stored.over_budget:
        return Exhausted(
            Reason.BUDGET_EXHAUSTED,
            f"{said}; ask again then",
            {"answer": stored.answer_id, "cause": stored.failure},
            retry_seconds=0,
        )
    return FailedPrecondition(
        Reason.ANSWER_FAILED, said, {"answer": stored.answer_id, "cause": stored.failure}
    )


async def _sources(tx: Transaction, questions: Sequence[Question]) -> dict[str, Source]:
    """Returns what the questions are asked of, by the names of memories. Raises NotFound."""
    session, names = questions[0].session, {one.memory for one in questions}
    key = session_key(tx.tenant_id, session)
    sources: dict[str, Source] = {}
    if len(questions) > 1 or "" in names:
        # Several questions all read the same log, so the head is locked.
        look = sessions.lock_head if len(questions) > 1 else sessions.keep
        held = await look(tx, key)
        if held is None:
            raise session_not_found(session)
        sources[""] = Source(
            session_key=key, head=held.head, incarnation=held.incarnation, memory=None
        )
    else:
        # What is stored of a question goes with its session, or is not stored.
        await sessions.keep(tx, key)
    for name in names - {""}:
        stored = await find_memory(tx, session, name)
        sources[name] = Source(
            session_key=key, head=stored.head, incarnation=stored.incarnation, memory=stored
        )
    return sources


async def _end_waits(
    tx: Transaction, questions: Sequence[Question], sources: Mapping[str, Source]
) -> Sequence[UUID]:
    """Ends the waits for more chunks of the memories that are asked; returns the woken ones.

    A question to the session may be answered from any of its memories. The answer does not
    wait for them, unless it asks for that.
    """
    woken: list[UUID] = []
    # In the same order everywhere, since each locks its memories: first all, with no name.
    for name in sorted({one.memory for one in questions if one.named_reader not in OF_LOG}):
        source, stored = sources[name], sources[name].memory
        if stored is None:
            woken += await flushing.end_wait(tx, source.session_key, None, source.head)
        elif stored.spec.lingers and stored.applied_position < source.head:
            woken += await flushing.end_wait(tx, *item_key(stored), source.head)
    return woken


async def stored_answer(tx: Transaction, session: str, answer_id: UUID) -> AskDone:
    """Reads an answer and what it cost. Raises NotFound."""
    key = session_key(tx.tenant_id, session)
    stored = await answers.get(tx, key, answer_id)
    if stored is None:
        raise await answer_not_found(tx, session, answer_id)
    usage = await calls.usage_of_answer(tx, key, answer_id, occasion(answer_id))
    return AskDone(answer=stored, usage=usage)


async def answer_not_found(tx: Transaction, session: str, answer_id: UUID) -> NotFound:
    """Returns the refusal of an answer that is not there: it, or its session."""
    if await sessions.get(tx, session_key(tx.tenant_id, session)) is None:
        return session_not_found(session)
    return _no_answer(session, answer_id)


def _no_answer(session: str, answer_id: UUID) -> NotFound:
    return NotFound(
        Reason.ANSWER_NOT_FOUND,
        f"session {session!r} has no answer {answer_id}",
        {"session": session, "answer": answer_id},
    )


def _item(tenant_id: UUID, session_key: UUID, answer_id: UUID) -> WorkItem:
    return WorkItem(
        kind=WorkKind.ANSWER, tenant_id=tenant_id, session_key=session_key, item_id=answer_id
    )


def occasion(answer_id: UUID) -> str:
    """Returns the occasion of an answer's model calls, as the ledger names it."""
    return f"answer:{answer_id}"
