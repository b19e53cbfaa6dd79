"""Dispatch by procrastinate: a queue in PostgreSQL.

Six traps of that library were found and are stepped around here:

1. Its recipe for the jobs of dead workers, to retry them, breaks on the queueing lock
   when a follow-up waits already, and the key is stuck for ever. `sweep` deletes the
   dead job and queues a new one unless one waits, in one statement. For the same
   reason jobs are never retried: a step's backoff is the memory's `ready_at`.
2. Deferring a duplicate aborts the transaction. `hint` inserts with ON CONFLICT.
3. A hint inside the transaction that makes the work can be taken before the work is
   there. Hints come after the commit.
4. NOTIFY serialises commits. Hints go over connections of their own, off the path of
   any ack.
5. A job whose end could not be written stays "doing" for as long as its worker lives,
   and keeps everybody from the item. Such jobs are remembered and swept.
6. A worker that stops says no more that it lives, though its handlers still run.
   `run` says it for them, else others would take their items and pay their calls again.
"""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import procrastinate
import psycopg
import structlog
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager
from psycopg_pool import AsyncConnectionPool

from service.dispatch.counting import COUNTS, OF_JOBS
from service.dispatch.port import DispatchStatistics, Handler
from service.dispatch.setup import (
    TASK,
    DispatchMismatch,
    DispatchMissing,
    connection_options,
    verify,
)
from service.domain.fail_points import FailPoint, reach
from service.domain.work import WorkItem, WorkKind

_log = structlog.get_logger("palimpsest.dispatch")

#: How often a worker asks for hints when no notification reached it.
POLL_SECONDS = 1.0
#: Wait before the library's loop is started again after it failed.
RESTART_SECONDS = 1.0

#: What somebody waits for does not stand in line behind a thousand memories' backlogs.
_PRIORITIES = {WorkKind.ANSWER: 1, WorkKind.SCHEMA: 1}

# Two batches that meet wait for each other's rows: both take them in one order, else they
# would deadlock.
_HINT = """
INSERT INTO procrastinate_jobs (queue_name, task_name, lock, queueing_lock, args, priority)
SELECT %(task)s, %(task)s, t.lock, t.lock, t.args, t.priority
FROM unnest(%(locks)s::text[], %(args)s::jsonb[], %(priorities)s::int[]) AS t (lock, args, priority)
ORDER BY t.lock
ON CONFLICT (queueing_lock) WHERE status = 'todo' DO NOTHING
"""

# Workers before their jobs: the library locks them in that order when it forgets workers
# itself, and else two processes that look after the same dead one would deadlock.
_SWEEP = """
WITH gone AS (
    DELETE FROM procrastinate_workers WHERE id IN (
        SELECT id FROM procrastinate_workers
        WHERE last_heartbeat < now() - make_interval(secs => %(seconds)s)
        ORDER BY id FOR UPDATE)
    RETURNING id
), dead AS (
    DELETE FROM procrastinate_jobs WHERE id IN (
        SELECT id FROM procrastinate_jobs
        WHERE status = 'doing' AND (
            worker_id IS NULL
            OR worker_id IN (SELECT id FROM gone)
            OR id = ANY(%(unfinished)s::bigint[]))
        ORDER BY id FOR UPDATE)
    RETURNING queue_name, task_name, lock, queueing_lock, args, priority
), again AS (
    INSERT INTO procrastinate_jobs (queue_name, task_name, lock, queueing_lock, args, priority)
    SELECT * FROM dead ORDER BY lock
    ON CONFLICT (queueing_lock) WHERE status = 'todo' DO NOTHING
)
SELECT count(*) AS freed FROM dead
"""

_BEAT = "UPDATE procrastinate_workers SET last_heartbeat = now() WHERE id = ANY(%(workers)s)"

_STATISTICS = f"SELECT {COUNTS} {OF_JOBS}"


#: As the data's: a host that vanished without a word is noticed by its silence.
_SILENCE = {
    "tcp_user_timeout": 15_000,
    "keepalives_idle": 30,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}


async def _each_statement_alone(connection: psycopg.AsyncConnection[Any]) -> None:
    """The library sends one statement a time: a transaction around it is two round trips."""
    await connection.set_autocommit(True)


async def _check(connection: psycopg.AsyncConnection[Any]) -> None:
    """Raises OperationalError where the server is gone, or has told that it takes no writes.

    A primary that another one replaces may live on so: what fails there fails for ever.
    """
    await AsyncConnectionPool.check_connection(connection)
    if connection.pgconn.parameter_status(b"default_transaction_read_only") == b"on":
        raise psycopg.OperationalError("the server takes no writes")


def _pool(**arguments: Any) -> AsyncConnectionPool[Any]:
    """Makes the library's pool, with our check of each connection in place of its own."""
    return AsyncConnectionPool(**{**arguments, "check": _check})


class _Jobs(JobManager):
    """The library's jobs; remembers the ones whose end could not be written."""

    def __init__(self, connector: procrastinate.BaseConnector) -> None:
        super().__init__(connector)
        #: Ids of jobs that are "doing" in the table perhaps, and in no hand for certain.
        self.unfinished: set[int] = set()

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        """Writes the end of a job, or leaves that to the next sweep."""
        try:
            reach(FailPoint.JOB_BEFORE_END)
            await super().finish_job(job, status, delete_job)
            reach(FailPoint.JOB_ENDED)
        except Exception as error:
            # Whatever it was: the job would keep everybody from the item for as long as this
            # worker lives. Also when the job is gone since this worker was taken for dead:
            # then the sweep finds nothing.
            known = isinstance(error, ConnectorException)
            _log.warning(
                "end of work not written",
                item=job.lock,
                cause=_cause(error),
                exc_info=None if known else error,
            )
            if job.id is not None:
                self.unfinished.add(job.id)


class ProcrastinateDispatcher:
    """See `service.dispatch.port.Dispatcher`."""

    def __init__(
        self,
        database_url: str,
        *,
        heartbeat_seconds: float,
        dead_after_seconds: float,
        pool_size: int = 6,
    ) -> None:
        self._database_url = database_url
        self._heartbeat_seconds = heartbeat_seconds
        self._dead_after_seconds = dead_after_seconds
        connector = procrastinate.PsycopgConnector(
            conninfo=database_url,
            kwargs={
                "options": connection_options(),
                "application_name": "palimpsest-dispatch",
                "connect_timeout": 5,
                "target_session_attrs": "read-write",
                **_SILENCE,
            },
            configure=_each_statement_alone,
            pool_factory=_pool,
            min_size=1,
            max_size=pool_size,
            timeout=5.0,
            reconnect_timeout=5.0,
        )
        self._app = procrastinate.App(connector=connector)
        self._app.job_manager = self._jobs = _Jobs(connector)
        #: The jobs that handlers here have in hand, and the library's worker of each.
        self._held: dict[int, int] = {}

    async def __aenter__(self) -> "ProcrastinateDispatcher":
        """Connects. Raises ConnectionError when it cannot, or finds no tables there."""
        try:
            await self._app.open_async()
            await verify(self._database_url)
        except DispatchMissing as error:
            await self._app.close_async()
            raise ConnectionError(str(error)) from error
        except DispatchMismatch as error:
            # Another release is being rolled out. What fails by it is hints, and those
            # may be lost; refusing to start would cost appends and answers.
            _log.warning("dispatch tables of another release", cause=str(error))
        except (ConnectorException, psycopg.Error) as error:
            await self._app.close_async()
            raise ConnectionError(f"cannot reach the dispatch database: {_cause(error)}") from error
        return self

    async def __aexit__(self, *error: object) -> None:
        """Disconnects."""
        await self._app.close_async()

    async def hint(self, items: Sequence[WorkItem]) -> None:
        """Queues items; the ones that wait already stay one each."""
        if not items:
            return
        reach(FailPoint.HINT_BEFORE)
        try:
            await self._app.connector.execute_query_async(
                _HINT,
                task=TASK,
                locks=[item.lock for item in items],
                args=[_arguments(item) for item in items],
                priorities=[_PRIORITIES.get(item.kind, 0) for item in items],
            )
            reach(FailPoint.HINT_QUEUED)
        except ConnectorException as error:
            _log.warning("hints lost; the reconciler will find the work", cause=_cause(error))

    async def run(
        self, handler: Handler, *, concurrency: int, stop: asyncio.Event, stop_seconds: float
    ) -> None:
        """Works until `stop`; a lost database only interrupts it.

        When `stop` is set, handlers may end within `stop_seconds`; then they are
        cancelled. The same when `run` itself is cancelled.
        """
        self._register(handler)
        stopping = asyncio.create_task(stop.wait())
        beating = asyncio.create_task(self._beat())
        try:
            while not stop.is_set():
                try:
                    await self._work(stopping, concurrency, stop_seconds)
                except Exception as error:
                    # The loop must survive a database that went away for a while.
                    _log.warning("dispatch interrupted", cause=_cause(error))
                # The library also stops without an error, when its heartbeat or its
                # listening fails. Not to spin, wait in any case.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), RESTART_SECONDS)
        finally:
            stopping.cancel()
            beating.cancel()
            await asyncio.gather(stopping, beating, return_exceptions=True)

    async def _work(
        self, stopping: asyncio.Task[bool], concurrency: int, stop_seconds: float
    ) -> None:
        """One life of the library's loop: until `stopping` is done, or until it fails."""
        working = asyncio.create_task(
            self._app.run_worker_async(
                queues=[TASK],
                concurrency=concurrency,
                fetch_job_polling_interval=POLL_SECONDS,
                abort_job_polling_interval=60.0,
                shutdown_graceful_timeout=stop_seconds,
                delete_jobs="always",
                install_signal_handlers=False,
                update_heartbeat_interval=self._heartbeat_seconds,
                stalled_worker_timeout=self._dead_after_seconds,
            )
        )
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Cancelled, the library lets running jobs end first.
            working.cancel()
            await asyncio.wait((working,))
        if not working.cancelled():
            working.result()

    async def _beat(self) -> None:
        """Says that the workers live whose handlers run, also when they are stopping."""
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            if not self._held:
                continue
            try:
                await self._app.connector.execute_query_async(
                    _BEAT, workers=sorted(set(self._held.values()))
                )
            except ConnectorException as error:
                _log.warning("heartbeat not written", cause=_cause(error))

    async def sweep(self) -> int:
        """Frees and queues again what dead workers held, and what was not written as ended."""
        unfinished = sorted(self._jobs.unfinished)
        reach(FailPoint.SWEEP_BEFORE)
        try:
            row = await self._app.connector.execute_query_one_async(
                _SWEEP, seconds=self._dead_after_seconds, unfinished=unfinished
            )
        except ConnectorException as error:
            _log.warning("cannot sweep", cause=_cause(error))
            return 0
        reach(FailPoint.SWEPT)
        self._jobs.unfinished.difference_update(unfinished)
        return int(row["freed"])

    async def statistics(self) -> DispatchStatistics:
        """Counts of the queue. Raises ConnectionError."""
        try:
            row = await self._app.connector.execute_query_one_async(_STATISTICS)
        except ConnectorException as error:
            raise ConnectionError(_cause(error)) from error
        return DispatchStatistics(
            queued=row["queued"],
            running=row["running"],
            oldest_queued_seconds=row["oldest"],
        )

    def _register(self, handler: Handler) -> None:
        async def work(context: procrastinate.JobContext, /, **arguments: str) -> None:
            item = _item(arguments)
            job, worker = context.job.id, context.job.worker_id
            assert job is not None, "it was fetched"
            assert worker is not None, "it was fetched"
            reach(FailPoint.JOB_TAKEN)
            self._held[job] = worker
            try:
                await handler(item)
                reach(FailPoint.WORK_ENDED)
            except Exception:
                # The item comes back by the reconciler; the worker goes on.
                _log.exception("work failed", item=item.lock)
            finally:
                del self._held[job]

        self._app.tasks.pop(TASK, None)
        self._app.task(name=TASK, queue=TASK, pass_context=True)(work)


def _arguments(item: WorkItem) -> str:
    return json.dumps(
        {
            "kind": item.kind.value,
            "tenant_id": str(item.tenant_id),
            "session_key": str(item.session_key),
            "item_id": str(item.item_id),
        }
    )


def _item(arguments: dict[str, Any]) -> WorkItem:
    return WorkItem(
        kind=WorkKind(arguments["kind"]),
        tenant_id=UUID(arguments["tenant_id"]),
        session_key=UUID(arguments["session_key"]),
        item_id=UUID(arguments["item_id"]),
    )


def _cause(error: BaseException) -> str:
    deepest = error.__cause__ or error
    return (str(deepest).strip() or type(deepest).__name__).splitlines()[0]
