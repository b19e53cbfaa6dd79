"""Reads trajectories: event by event, summed, and as examples to train with."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import structlog

from service.domain.answers.replaying import NotReplayable, own_events, prompts_of
from service.domain.answers.trajectory import Action, Event, EventKind
from service.domain.memories.specs import kinds_read_by
from service.domain.prompting.fitting import TextTooLong
from service.domain.prompting.flows import Fetch, FetchingFlow, ModelRequest
from service.domain.values.memory_specs import ReaderName
from service.domain.values.tenancy import session_key
from service.llm.gateway.driver import drive
from service.llm.providers.facts import ModelFacts
from service.settings.config import Config
from service.usecases.answers.ask import answer_not_found
from service.usecases.answers.readers.answering import ReadingKit
from service.usecases.answers.readers.auto import as_chosen
from service.usecases.answers.readers.browse import BrowseTerms, ranked_in
from service.usecases.answers.readers.browsed_log import BrowsedLog, BrowseHit
from service.usecases.answers.readers.log_range import wanted_log_of
from service.usecases.answers.readers.memwalker import Terms
from service.usecases.log.lookup import find_memory, session_not_found
from storage.answers import answers, listing, trajectories
from storage.answers.answers import StoredAnswer
from storage.answers.ratings import StoredRating
from storage.answers.trajectories import NavigationTotals
from storage.engine.database import Database
from storage.engine.listing import ListPage
from storage.log import sessions

_log = structlog.get_logger("palimpsest.trajectories")

#: Answers that one query of an export reads.
EXPORT_ANSWERS = 50

#: A reading again, None when there is no text, and what it looks up.
_Replay = tuple[FetchingFlow[Any] | None, Callable[[Fetch], Awaitable[Any]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingExample:
    """A move of a navigation or a browsing, to train a model with."""

    answer_id: UUID
    #: The event of the trajectory.
    ordinal: int
    template: str
    #: The prompt as the model saw it, and its reply as it came.
    prompt: str
    reply: str
    #: A client's rating of the answer; None: there is none.
    rating: StoredRating | None


class Trajectories:
    """Reads what readers did."""

    def __init__(
        self,
        database: Database,
        facts: Callable[[str], ModelFacts],
        marker_key: bytes,
        config: Config,
    ) -> None:
        self._database = database
        self._kit = ReadingKit(database=database, facts=facts, marker_key=marker_key, config=config)

    async def events(
        self,
        tenant_id: UUID,
        session: str,
        answer_id: UUID,
        *,
        after: int,
        limit: int,
        max_bytes: int,
    ) -> ListPage[Event]:
        """Returns up to `limit` events after an ordinal, about `max_bytes` of them.

        Raises NotFound.
        """
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id, name="trajectories") as tx:
            if await answers.status(tx, key, answer_id) is None:
                raise await answer_not_found(tx, session, answer_id)
            return await trajectories.page_events(
                tx, (key, answer_id), after, limit, max_bytes=max_bytes
            )

    async def statistics(self, tenant_id: UUID, session: str, memory: str) -> NavigationTotals:
        """Returns the totals of a memory's navigations. Raises NotFound, FailedPrecondition."""
        async with self._database.transaction(tenant_id, name="trajectories") as tx:
            stored = await find_memory(tx, session, memory, *_navigable())
            return await trajectories.sum_up(tx, stored.session_key, stored.memory_id)

    async def export(
        self,
        tenant_id: UUID,
        session: str,
        memory: str,
        ids: Sequence[UUID] = (),
        *,
        good: bool | None = None,
    ) -> AsyncGenerator[TrainingExample]:
        """Yields the moves of all navigations of a memory that found an answer, oldest first.

        Without a memory those of all browsings of the session's log. Of the answers `ids` only,
        if there are any; with `good` only of those that a client rated so. What this release
        would ask in other words is left out. Raises NotFound, FailedPrecondition.
        """
        async with self._database.transaction(tenant_id, name="trajectories") as tx:
            stored = await find_memory(tx, session, memory, *_navigable()) if memory else None
            key = session_key(tenant_id, session)
            if stored is None and await sessions.get(tx, key) is None:
                raise session_not_found(session)
        memory_id = None if stored is None else stored.memory_id
        after = None
        while True:
            async with self._database.transaction(tenant_id, name="trajectories") as tx:
                page = await listing.list_answered(
                    tx, key, memory_id, after=after, limit=EXPORT_ANSWERS, ids=ids, good=good
                )
            for asked in page:
                read = asked
                if asked.chosen is not None:
                    spec = None if stored is None else stored.spec
                    read = as_chosen(asked, asked.chosen, spec)
                for event, prompt in await self._moves(tenant_id, read):
                    yield _example(asked, event, prompt)
            if len(page) < EXPORT_ANSWERS:
                return
            after = page[-1].created_at, page[-1].answer_id

    async def _moves(
        self, tenant_id: UUID, asked: StoredAnswer
    ) -> Sequence[tuple[Event, ModelRequest]]:
        """Returns the valid moves of one reading with their prompts, if this release made them.

        Events have the ordinals that the reader gave them.
        """
        before = _events_before(asked)
        async with self._database.transaction(tenant_id, name="trajectories") as tx:
            key = asked.session_key, asked.answer_id
            events = own_events(await trajectories.list_events(tx, key, before), before)
        if any(event.kind is EventKind.CHOICE for event in events):
            # A second reader gave the answer: the moves of the first are none to learn from.
            return ()
        try:
            replay = self._browsing if asked.asked_memory is None else self._navigation
            flow, fetch = await replay(tenant_id, asked, events)
            if flow is None:
                return ()
            prompts: Any = prompts_of(flow, events)
            limit = self._kit.config.browse_concurrency
            found: Sequence[tuple[Event, ModelRequest]] = await drive(prompts, fetch, limit=limit)
        except (NotReplayable, TextTooLong) as error:
            _log.info("trajectory left out", answer=str(asked.answer_id), cause=str(error))
            return ()
        return [(event, ask) for event, ask in found if event.action is not Action.INVALID]

    async def _navigation(
        self, tenant_id: UUID, asked: StoredAnswer, events: Sequence[Event]
    ) -> _Replay:
        terms = Terms.of(asked.spec, self._kit)
        reader = await terms.reader(self._kit, tenant_id, asked)
        if reader is None:
            return None, _refuse
        return terms.flow(asked, reader.root), reader.fetch

    async def _browsing(
        self, tenant_id: UUID, asked: StoredAnswer, events: Sequence[Event]
    ) -> _Replay:
        terms = BrowseTerms.of(asked, asked.model, self._kit)
        held = wanted_log_of(self._database, tenant_id, asked)
        log = await BrowsedLog.open(
            held,
            terms.pack(asked.worded),
            _NoRanks(),
            ranked_in(events),
            max_bytes=self._kit.config.limits.max_browsed_bytes,
            left_out=asked.left_out,
        )
        return terms.flow(asked.worded, log.frames), log.fetch


def _navigable() -> Sequence[str]:
    return kinds_read_by(ReaderName.MEMWALKER)


class _NoRanks:
    """Retrieval of an answer that was made: what its events recorded, and no more."""

    async def rank(self, query: str, *, limit: int, rerank: bool) -> Sequence[BrowseHit]:
        """Raises NotReplayable."""
        raise NotReplayable("pieces were searched for where no search was recorded")


async def _refuse(_: Fetch) -> Any:
    raise NotReplayable("there is nothing to look up")


def _events_before(asked: StoredAnswer) -> int:
    """Returns how many events precede those of the reader that answered."""
    return 0 if asked.chosen is None else asked.chosen.events


def _example(asked: StoredAnswer, event: Event, prompt: ModelRequest) -> TrainingExample:
    return TrainingExample(
        answer_id=asked.answer_id,
        ordinal=event.ordinal + _events_before(asked),
        template=event.template,
        prompt=prompt.text,
        reply=event.reply,
        rating=asked.rating,
    )
