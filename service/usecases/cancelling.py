"""Cancelling: somebody does not want an answer any more, and its worker stops making it."""

import asyncio
from collections.abc import Coroutine
from itertools import groupby
from typing import Any
from uuid import UUID

import structlog

from service.domain.ledger import CallScope
from service.domain.tenancy import session_key
from service.domain.work import WorkItem, WorkKind
from service.llm.gateway import Gateway
from service.usecases.ask import Answered, answer_not_found, occasion, with_usage
from storage import answers, settling
from storage.database import Database

_log = structlog.get_logger("palimpsest.cancelling")

#: How often a worker looks whether somebody cancelled what it makes, with one query for
#: all of a tenant's; none when it makes nothing.
LOOK_SECONDS = 0.5


async def cancel(database: Database, tenant_id: UUID, session: str, answer_id: UUID) -> Answered:
    """The answer: cancelled, unless it had ended before. Raises NotFound."""
    key = session_key(tenant_id, session)
    async with database.transaction(tenant_id) as tx:
        await settling.settle(tx, WorkKind.ANSWER, key, answer_id, status="cancelled")
        stored = await answers.get(tx, key, answer_id)
        if stored is None:
            raise await answer_not_found(tx, session, answer_id)
        (answered,) = await with_usage(tx, [stored])
    return answered


class InHand:
    """The answers that are being made in one worker process."""

    def __init__(self, database: Database, gateway: Gateway) -> None:
        self._database = database
        self._gateway = gateway
        self._tasks: dict[asyncio.Task[None], WorkItem] = {}
        #: Those whose answer somebody cancelled.
        self._cancelled: set[asyncio.Task[None]] = set()

    async def run(self, item: WorkItem, work: Coroutine[Any, Any, None]) -> None:
        """Does the work, until somebody cancels the answer."""
        task = asyncio.create_task(work)
        self._tasks[task] = item
        try:
            await task
        except asyncio.CancelledError:
            # Of the worker, or of the work alone.
            if task not in self._cancelled or _is_cancelled():
                raise
            _log.info("answer cancelled", item=str(item.item_id))
        finally:
            del self._tasks[task]
            self._cancelled.discard(task)

    async def look(self) -> None:
        """Ends the work on answers that were cancelled. Raises StorageError."""
        held = sorted(self._tasks.values(), key=lambda item: str(item.tenant_id))
        for tenant_id, items in groupby(held, key=lambda item: item.tenant_id):
            async with self._database.transaction(tenant_id) as tx:
                keys = [(item.session_key, item.item_id) for item in items]
                unwanted = await settling.cancelled(tx, keys)
            for task, item in self._tasks.items():
                if item.item_id in unwanted and task not in self._cancelled:
                    self._cancelled.add(task)
                    # A call whose task is only cancelled goes on, for whoever asks again.
                    self._gateway.call_off(_scope_of(item))
                    task.cancel()


def _scope_of(item: WorkItem) -> CallScope:
    return CallScope(
        tenant_id=item.tenant_id,
        session_key=item.session_key,
        memory_id=None,
        occasion=occasion(item.item_id),
    )


def _is_cancelled() -> bool:
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
