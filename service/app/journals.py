"""Opens the erasure journal, and repeats first what a restored database has missed."""

from service.app.foundation import CannotStart
from service.domain.log.journal_lines import JournalBroken, journal_key
from service.settings.config import Config
from service.usecases.operations.erasure_journal import ErasureJournal, JournalComparison
from service.usecases.operations.journal_file import JournalFile
from storage.engine.database import Database
from storage.engine.database_state import DeploymentKeys

_PAGE = "docs/guides/running.md#erasures-and-backups"


def journal_of(config: Config, database: Database, keys: DeploymentKeys) -> ErasureJournal:
    """Returns the journal that the settings name."""
    path = config.erasure_journal
    file = None if path is None else JournalFile(path, journal_key(keys.token))
    return ErasureJournal(database, file, keys.token)


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
