"""The database's clock, and what the clocks of processes say against it."""

from collections.abc import Callable
from uuid import UUID

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert

from service.domain.operations.doctor import Clock
from storage.engine.database import Transaction
from storage.tables import process

#: The database's clock, in seconds since 1970.
NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"

#: Its time as the column of a relation, for a CASE of an UPDATE: Citus takes no `now()` there.
#: PostgreSQL plans both alike. For statements that are `Ready`: of others SQLAlchemy warns that
#: nothing joins it.
CLOCK = select(func.now().label("at")).subquery("clock")


async def note(
    tx: Transaction,
    process_id: UUID,
    *,
    kind: str,
    host: str,
    now: Callable[[], float],
) -> None:
    """Compares a process's clock, in seconds since 1970, with the database's, and notes it."""
    begun = now()
    theirs = (await tx.fetch(NOW, prepare=None))[0][0]
    ended = now()
    said = {
        "clock_off_seconds": (begun + ended) / 2 - theirs,
        "round_trip_seconds": max(ended - begun, 0.0),
    }
    row = insert(process).values(
        process_id=process_id, kind=kind, host=host, seen_at=func.now(), **said
    )
    renewed = {name: row.excluded[name] for name in (*said, "seen_at")}
    await tx.execute(row.on_conflict_do_update(index_elements=[process.c.process_id], set_=renewed))


async def forget(tx: Transaction, *, silent_seconds: float) -> None:
    """Forgets processes that have said nothing for so long."""
    await tx.execute(delete(process).where(process.c.seen_at < _ago(silent_seconds)))


async def read(tx: Transaction, *, silent_seconds: float) -> list[Clock]:
    """The clocks of the processes that have said something since then, by host and kind."""
    rows = await tx.fetch(
        select(
            process.c.kind,
            process.c.host,
            process.c.clock_off_seconds,
            process.c.round_trip_seconds,
        )
        .where(process.c.seen_at >= _ago(silent_seconds))
        .order_by(process.c.host, process.c.kind, process.c.process_id)
    )
    return [
        Clock(
            of=f"{row.kind}@{row.host}",
            off_seconds=row.clock_off_seconds,
            round_trip_seconds=row.round_trip_seconds,
        )
        for row in rows
    ]


def _ago(seconds: float) -> object:
    return func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)
