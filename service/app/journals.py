"""Opens the erasure journal, and repeats first what a restored database has missed."""

from collections.abc import Sequence

from service.app.foundation import CannotStart
from service.domain.log.erasures import ErasureRequest
from service.domain.log.journal_lines import JournalBroken, JournalEntry, journal_key
from service.domain.values.work_items import WorkItem
from service.settings.config import Config
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations.erasure_journal import ErasureJournal, JournalComparison
from service.usecases.operations.journal_file import JournalFile
from storage.engine.database import Database, Transaction
from storage.engine.database_state import DeploymentKeys

_PAGE = "docs/guides/running.md#erasures-and-backups"


def journal_of(config: Config, database: Database, keys: DeploymentKeys) -> ErasureJournal:
    """Returns the journal that the settings name."""
    path = config.erasure_journal
    file = None if path is None else JournalFile(path, journal_key(keys.token))

    async def redact(tx: Transaction, entry: JournalEntry, request: ErasureRequest) -> bool:
        # Workers have no other use for it.
        from service.usecases.operations.redacting import Redactor

        limit = config.limits.max_redacted_chunks
        redactor = Redactor(database, WakeUps(_find_themselves), keys.token, max_chunks=limit)
        return await redactor.repeat(tx, entry, request)

    return ErasureJournal(database, file, redact)


async def _find_themselves(_: Sequence[WorkItem]) -> None:
    """Wakes no worker: those that start find what there is to do."""


async def open_journal(config: Config, database: Database, keys: DeploymentKeys) -> ErasureJournal:
    """Returns the journal, once the database has missed nothing of it. Raises CannotStart."""
    journal = journal_of(config, database, keys)
    await compare(journal, config)
    return journal


async def compare(journal: ErasureJournal, config: Config) -> JournalComparison:
    """Compares journal and database. Raises CannotStart, StorageError."""
    try:
        return await journal.compare()
    except JournalBroken as error:
        said = f"the erasure journal {config.erasure_journal} {error}; see {_PAGE}"
        raise CannotStart(said) from error
