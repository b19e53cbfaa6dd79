"""Proves an erasure again: checks its receipt, and scans every place that a text could be in."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from service.domain.log.receipts import NotAReceipt, Receipt
from service.domain.operations.encodings import needles
from service.usecases.operations.erasure_scan import (
    ScannedPlace,
    Scanner,
    parts_of,
    plain_files,
    skipped,
)
from service.usecases.operations.signing import check_signature, public_key
from storage.engine.errors import StorageError
from storage.operations import raw_scan
from storage.operations.raw_scan import CannotScan

DATABASE = "database dump"
REDIS = "Redis"
DIGESTS = "texts by their digests"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanTargets:
    """Where a verification scans; None leaves a place out."""

    #: The URL of a role that reads all rows: a superuser, or one with BYPASSRLS.
    database_url: str | None = None
    #: The program.
    pg_dump: str = "pg_dump"
    #: A plain dump that was made before, in place of the database.
    dump: Path | None = None
    redis_url: str | None = None
    #: The data folder of an `up`.
    data_dir: Path | None = None
    #: A folder of recorded exchanges, or any other.
    folders: tuple[Path, ...] = ()
    #: Whether tables are rewritten first, and the write-ahead log is left behind.
    rewrite: bool = False


def verify(receipt: Receipt, text: str | None, targets: ScanTargets) -> Iterator[ScannedPlace]:
    """Yields the result of each place. Raises NotAReceipt, ValueError, CannotScan."""
    check_signature(receipt)
    wanted = {} if text is None else needles(text)
    key = None
    if targets.database_url is not None:
        key = _tenant_key(receipt, targets.database_url)
        if targets.rewrite:
            _rewrite(targets.database_url)
    elif receipt.digests:
        yield skipped(DIGESTS, "their key is in the database (--database)")
    scanner = Scanner(receipt, wanted, key)
    yield from _databases(scanner, targets)
    if targets.redis_url is None:
        yield skipped(REDIS, "no URL is known (PALIMPSEST_REDIS_URL)")
    else:
        yield scanner.values(REDIS, raw_scan.redis_bytes(targets.redis_url))
    yield from _files(scanner, targets, has_text=text is not None)


def _tenant_key(receipt: Receipt, url: str) -> bytes:
    """Returns the tenant's digest key. Raises NotAReceipt when another key signed it."""
    try:
        found = raw_scan.digest_key(url, receipt.tenant_id)
    except StorageError as error:
        raise CannotScan(f"cannot read the database: {error}") from error
    if found is None or public_key(found[1]) != receipt.public_key:
        raise NotAReceipt("is signed by another key than the tenant's in this database")
    digest, _ = found
    return digest


def _rewrite(url: str) -> None:
    try:
        raw_scan.rewrite(url)
    except StorageError as error:
        raise CannotScan(f"cannot rewrite the tables: {error}") from error


def _databases(scanner: Scanner, targets: ScanTargets) -> Iterator[ScannedPlace]:
    if targets.dump is not None:
        with _opened(targets.dump) as file:
            found = scanner.dump(str(targets.dump), file)
        yield found
    elif targets.database_url is not None:
        # Its end is checked before its result is given.
        with raw_scan.dumping(targets.pg_dump, targets.database_url) as file:
            found = scanner.dump(DATABASE, file)
        yield found
    else:
        yield skipped(DATABASE, "no superuser's URL is known (--database), nor a --dump")


def _files(scanner: Scanner, targets: ScanTargets, *, has_text: bool) -> Iterator[ScannedPlace]:
    found = [(str(folder), folder, list(plain_files(folder))) for folder in targets.folders]
    if targets.data_dir is not None:
        parts = parts_of(targets.data_dir)
        found += [(name, targets.data_dir, paths) for name, paths in parts.items()]
    for name, folder, paths in found:
        if not has_text:
            yield skipped(name, "files have no rows: give the text (--text)")
        else:
            yield scanner.files(name, folder, paths)


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise CannotScan(f"cannot read {path}: {error.strerror}") from error
