"""Trajectories, read afterwards: event by event, summed, and as examples to train with."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import structlog

from service.config import Config
from service.domain.flows import ModelAsk
from service.domain.tenancy import session_key
from service.domain.trajectory import (
    Action,
    Event,
)
from service.domain.tree.fitting import TextTooLong
from service.domain.tree.replaying import NotReplayable, prompts_of
from service.llm.driver import drive
from service.llm.facts import ModelFacts
from service.usecases.ask import answer_not_found
from service.usecases.lookup import find_navigable, refuse_unnavigable
from service.usecases.navigate import Terms
from storage import answers, trajectories
from storage.answers import StoredAnswer
from storage.database import Database
from storage.trajectories import Sums

_log = structlog.get_logger("palimpsest.trajectories")

#: Answers that one look of an export brings.
EXPORT_ANSWERS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A move of a navigation, to train a model with."""

    answer_id: UUID
    #: The event of the trajectory.
    ordinal: int
    template: str
    #: The prompt as the model saw it, and its reply as it came.
    prompt: str
    reply: str


class Trajectories:
    """Reads what navigations did."""

    def __init__(
        self,
        database: Database,
        facts: Callable[[str], ModelFacts],
        structured: Callable[[str], bool],
        marker_key: bytes,
        config: Config,
    ) -> None:
        self._database = database
        self._facts = facts
        self._structured = structured
        self._marker_key = marker_key
        self._config = config

    async def events(
        self, tenant_id: UUID, session: str, answer_id: UUID, *, after: int, limit: int
    ) -> Sequence[Event]:
        """Up to `limit` events behind an ordinal. Raises NotFound, FailedPrecondition."""
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id) as tx:
            stored = await answers.get(tx, key, answer_id)
            if stored is None:
                raise await answer_not_found(tx, session, answer_id)
            refuse_unnavigable(stored.memory_name, stored.spec)
            return await trajectories.list_events(tx, (key, answer_id), after, limit)

    async def statistics(self, tenant_id: UUID, session: str, memory: str) -> Sums:
        """What all navigations of a memory came to. Raises NotFound, FailedPrecondition."""
        async with self._database.transaction(tenant_id) as tx:
            stored = await find_navigable(tx, session, memory)
            return await trajectories.sum_up(tx, stored.session_key, stored.memory_id)

    async def export(
        self, tenant_id: UUID, session: str, memory: str, ids: Sequence[UUID] = ()
    ) -> AsyncGenerator[Example]:
        """The moves of all navigations of a memory that found an answer, oldest first.

        Of these answers only, if any are named. What this release would ask in other words
        is left out. Raises NotFound, FailedPrecondition.
        """
        async with self._database.transaction(tenant_id) as tx:
            stored = await find_navigable(tx, session, memory)
        after = None
        while True:
            async with self._database.transaction(tenant_id) as tx:
                page = await answers.list_answered(
                    tx,
                    stored.session_key,
                    stored.memory_id,
                    after=after,
                    limit=EXPORT_ANSWERS,
                    ids=ids,
                )
            for asked in page:
                for event, prompt in await self._moves(tenant_id, asked):
                    yield _example(asked, event, prompt)
            if len(page) < EXPORT_ANSWERS:
                return
            after = page[-1].created_at, page[-1].answer_id

    async def _moves(
        self, tenant_id: UUID, asked: StoredAnswer
    ) -> Sequence[tuple[Event, ModelAsk]]:
        """The valid moves of one navigation, with their prompts; none of another release's."""
        terms = Terms.of(
            asked.spec,
            default_model=self._config.model,
            facts=self._facts,
            structured=self._structured,
            marker_key=self._marker_key,
        )
        async with self._database.transaction(tenant_id) as tx:
            key = asked.session_key, asked.answer_id
            events = await trajectories.list_events(tx, key, 0)
        reader = await terms.reader(self._database, tenant_id, asked)
        if reader is None:
            return ()
        flow: Any = prompts_of(terms.flow(asked, reader.root), events)
        try:
            found: Sequence[tuple[Event, ModelAsk]] = await drive(flow, reader.look_up)
        except (NotReplayable, TextTooLong) as error:
            _log.info("trajectory left out", answer=str(asked.answer_id), cause=str(error))
            return ()
        return [(event, ask) for event, ask in found if event.action is not Action.INVALID]


def _example(asked: StoredAnswer, event: Event, prompt: ModelAsk) -> Example:
    return Example(
        answer_id=asked.answer_id,
        ordinal=event.ordinal,
        template=event.template,
        prompt=prompt.text,
        reply=event.reply,
    )
