"""Stops making answers that are cancelled, or that no client wants any more."""

import asyncio
from collections.abc import Coroutine
from itertools import groupby
from typing import Any

import structlog

from service.domain.calls.ledger import CallScope
from service.domain.values.work_items import WorkItem
from service.llm.gateway.gateway import Gateway
from service.usecases.answers.ask import occasion
from storage.answers import interest
from storage.engine.database import Database

_log = structlog.get_logger("palimpsest.cancelling")

#: How often a worker checks whether what it makes is cancelled or abandoned, with one round trip
#: for all of a tenant's; none when it makes nothing. It polls because time alone abandons an
#: answer, and because listening for all changes costs more than this query.
LOOK_SECONDS = 0.5


class ActiveAnswers:
    """The answers that a worker process is completing."""

    def __init__(self, database: Database, gateway: Gateway) -> None:
        self._database = database
        self._gateway = gateway
        self._tasks: dict[asyncio.Task[None], WorkItem] = {}
        #: Those whose answer is cancelled, or abandoned.
        self._ended: set[asyncio.Task[None]] = set()

    async def run(self, item: WorkItem, work: Coroutine[Any, Any, None]) -> None:
        """Does the work, until the answer is cancelled or abandoned."""
        task = asyncio.create_task(work)
        self._tasks[task] = item
        try:
            await task
        except asyncio.CancelledError:
            # Cancels the worker, or the work alone.
            if task not in self._ended or _is_cancelled():
                raise
            _log.info("answer given up", item=str(item.item_id))
        finally:
            del self._tasks[task]
            self._ended.discard(task)

    async def look(self) -> None:
        """Ends the work on answers that are cancelled or abandoned.

        Raises StorageError.
        """
        held = sorted(self._tasks.values(), key=lambda item: str(item.tenant_id))
        for tenant_id, items in groupby(held, key=lambda item: item.tenant_id):
            keys = [(item.session_key, item.item_id) for item in items]
            async with self._database.direct(tenant_id, name="answer") as direct:
                given_up = await interest.given_up(direct, keys)
            for task, item in self._tasks.items():
                if item.item_id not in given_up or task in self._ended:
                    continue
                self._ended.add(task)
                # A call whose task is only cancelled goes on: what an abandoned answer has begun
                # to pay for is there when a client resumes it.
                if given_up[item.item_id] == "cancelled":
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
