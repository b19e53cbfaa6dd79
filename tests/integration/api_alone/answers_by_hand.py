"""Answers that the test makes, instead of a worker."""

from dataclasses import replace
from uuid import UUID

from service.domain.answers.answer_updates import TextPiece
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from storage.answers import answers, texts, trajectories
from storage.engine.database import Database
from storage.memories import job_results
from tests.integration.answers.test_trajectories import EVENT


class ByHand:
    """A service whose answers only the test writes, in its session `s`."""

    def __init__(self, database: Database, address: str) -> None:
        self.address = address
        self._database = database
        self._key = session_key(DEFAULT_TENANT, "s")

    async def tell(self, answer_id: str, *ordinals: int) -> None:
        """Writes events of these ordinals."""
        async with self._database.transaction(DEFAULT_TENANT) as tx:
            for ordinal in ordinals:
                event = replace(EVENT, ordinal=ordinal)
                await trajectories.append(tx, (self._key, UUID(answer_id)), event)

    async def write(self, answer_id: str, ordinal: int, text: str) -> None:
        """Writes a piece of the text."""
        async with self._database.transaction(DEFAULT_TENANT) as tx:
            piece = TextPiece(ordinal=ordinal, text=text)
            assert await texts.append(tx, (self._key, UUID(answer_id)), [piece])

    async def complete(self, answer_id: str, text: str = "On Mondays.") -> None:
        """Ends the answer."""
        async with self._database.transaction(DEFAULT_TENANT) as tx:
            assert await answers.complete(
                tx, self._key, UUID(answer_id), text=text, citations=[], model="m/m"
            )

    async def fail(self, answer_id: str, *, over_budget: bool = False) -> None:
        """Ends the answer without one."""
        item = WorkItem(
            kind=WorkKind.ANSWER,
            tenant_id=DEFAULT_TENANT,
            session_key=self._key,
            item_id=UUID(answer_id),
        )
        async with self._database.transaction(DEFAULT_TENANT) as tx:
            assert await job_results.fail(tx, item, "no", over_budget=over_budget)

    async def fail_over_budget(self, answer_id: str) -> None:
        """Ends the answer because a budget does not allow a call."""
        await self.fail(answer_id, over_budget=True)
