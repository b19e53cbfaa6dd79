"""Making what somebody waits for: what follows when a try of it failed."""

import structlog

from service.config import Config
from service.domain.schema_generation import NoSchema
from service.domain.work import WorkItem
from service.llm.transport import ModelFailure
from storage import settling
from storage.database import Database

_log = structlog.get_logger("palimpsest.making")

#: Characters of a cause that are kept.
CAUSE_CHARACTERS = 500


async def put_off(
    database: Database, config: Config, item: WorkItem, *, attempts: int, error: Exception
) -> None:
    """Writes a failed try down: another follows, with growing pauses, or it is given up.

    `attempts` is how many failed before. Raises StorageError.
    """
    known = isinstance(error, ModelFailure | NoSchema)
    cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:CAUSE_CHARACTERS]
    _log.warning(
        f"{item.kind.value} failed",
        item=str(item.item_id),
        attempt=attempts + 1,
        cause=cause,
        exc_info=None if known else error,
    )
    # The journal would give the replies without a schema once more.
    final = isinstance(error, NoSchema) or (isinstance(error, ModelFailure) and not error.retryable)
    async with database.transaction(item.tenant_id) as tx:
        if final or attempts + 1 >= config.step_tries:
            await settling.fail(tx, item, cause)
        else:
            await settling.back_off(tx, item, config.step_backoff_seconds * 2**attempts)
