"""Reads what a deployment has stored as raw bytes, beside the service: pg_dump, Redis, settings.

For scans after an erasure. All readers stream: no value is held whole but a row of a dump.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any
from uuid import UUID

import psycopg
import redis
from psycopg import sql

from storage.engine.errors import translated

#: Bytes of the longest row that is kept whole; the rest of a longer one is read apart.
MAX_ROW_BYTES = 64 * 1024 * 1024
_END_OF_DUMP = b"-- PostgreSQL database dump complete"
_SECONDS = 30
_PAGE = 500


class CannotScan(Exception):
    """A place cannot be read; the message is one clear clause."""


@dataclass(frozen=True, slots=True)
class DumpedRow:
    """A line of a dump."""

    #: The table that the line is a row of; empty for all others.
    table: str
    columns: tuple[str, ...]
    line: bytes

    def cells(self) -> list[bytes]:
        """Returns the values as the dump has them."""
        return self.line.rstrip(b"\n").split(b"\t")


@contextmanager
def dumping(pg_dump: str, url: str) -> Iterator[IO[bytes]]:
    """Runs pg_dump and yields its output. Raises CannotScan when it fails."""
    # The password must not be among the arguments, which other users can list.
    parts = psycopg.conninfo.conninfo_to_dict(url)
    password = parts.pop("password", None)
    where = psycopg.conninfo.make_conninfo("", **parts)
    command = [pg_dump, f"--dbname={where}", "--format=plain", "--no-password"]
    environment = {"PATH": "/usr/bin:/bin"}
    if password is not None:
        environment["PGPASSWORD"] = str(password)
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
    except OSError as error:
        raise CannotScan(f"cannot run {pg_dump}: {error.strerror}") from error
    with process:
        assert process.stdout is not None, "it is a pipe"
        assert process.stderr is not None, "it is a pipe"
        try:
            cut = None
            try:
                yield process.stdout
            except CannotScan as error:
                # What pg_dump says is the reason.
                cut = error
            said = process.stderr.read(4096).decode(errors="replace").strip()
            if process.wait():
                reason = said.splitlines()[-1] if said else "no output"
                raise CannotScan(f"pg_dump failed: {reason}") from cut
            if cut is not None:
                raise cut
        finally:
            process.kill()


def rows_of(dump: IO[bytes]) -> Iterator[DumpedRow]:
    """Yields the lines of a plain dump, each with its table.

    Raises CannotScan when it is cut, of another format, or without the log.
    """
    table: str = ""
    columns: tuple[str, ...] = ()
    has_log = is_whole = False
    while line := dump.readline(MAX_ROW_BYTES):
        if not table and line.startswith(b"COPY "):
            name, _, rest = line[5:].decode(errors="replace").partition(" (")
            table = name.rpartition(".")[2].strip('"')
            columns = tuple(one.strip(' "') for one in rest.partition(")")[0].split(","))
            has_log = has_log or table == "chunk"
            yield DumpedRow("", (), line)
        elif line == b"\\.\n":
            table, columns = "", ()
        else:
            is_whole = is_whole or (not table and line.rstrip() == _END_OF_DUMP)
            yield DumpedRow(table, columns, line)
    if not (has_log and is_whole):
        raise CannotScan(
            "the dump is not a whole plain one of Palimpsest's database: make it by"
            " pg_dump --format=plain"
        )


def digest_key(url: str, tenant_id: UUID) -> tuple[bytes, bytes] | None:
    """Returns the digest key and the signing seed of a tenant; None when it has none.

    Needs the rights to read all rows. Raises StorageError, and CannotScan for what is no URL.
    """
    try:
        psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        # Its words would repeat the URL, which may have a password.
        raise CannotScan("the database has no URL such as postgresql://host/name") from error
    with translated(), psycopg.connect(url, connect_timeout=_SECONDS) as connection:
        row = connection.execute(
            "SELECT digest_key, signing_key FROM tenant_key WHERE tenant_id = %s", (tenant_id,)
        ).fetchone()
    return None if row is None else (bytes(row[0]), bytes(row[1]))


def rewrite(url: str) -> None:
    """Rewrites all tables, and lets the write-ahead log go: nothing of removed rows is left.

    Each table is locked while it is rewritten. Needs a superuser. Raises StorageError.
    """
    with translated(), psycopg.connect(url, autocommit=True) as connection:
        # Samples of texts, which ANALYZE took before statistics of these columns were turned off.
        connection.execute(
            "DELETE FROM pg_statistic s USING pg_attribute a WHERE a.attrelid = s.starelid"
            " AND a.attnum = s.staattnum AND a.attstattarget = 0"
        )
        rows = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = 'public'"
            " OR tablename = 'pg_statistic'"
        ).fetchall()
        for names in rows:
            name = sql.Identifier(*names)
            connection.execute(sql.SQL("VACUUM (FULL, ANALYZE) {}").format(name))
        for statement in ("CHECKPOINT", "SELECT pg_switch_wal()", "CHECKPOINT"):
            connection.execute(statement.encode())


def redis_bytes(url: str) -> Iterator[tuple[str, bytes]]:
    """Yields type and bytes of all keys and values. Raises CannotScan."""
    try:
        with redis.Redis.from_url(url, socket_timeout=_SECONDS) as opened:
            client: Any = opened
            for key in client.scan_iter(count=_PAGE):
                yield "key", key
                kind = client.type(key).decode()
                for value in _values(client, key, kind):
                    yield kind, value
    except redis.RedisError as error:
        raise CannotScan(f"cannot read Redis: {error}") from error


def _values(client: Any, key: bytes, kind: str) -> Iterator[bytes]:
    """Yields the parts of one key's value."""
    match kind:
        case "string":
            size, at = client.strlen(key), 0
            while at < size:
                # Pieces overlap, so that nothing is cut in two unseen.
                yield client.getrange(key, at, at + 2**20 + 2**12)
                at += 2**20
        case "hash":
            for field, value in client.hscan_iter(key, count=_PAGE):
                yield field + b"\0" + value
        case "set":
            yield from client.sscan_iter(key, count=_PAGE)
        case "zset":
            yield from (member for member, _ in client.zscan_iter(key, count=_PAGE))
        case "list":
            for at in range(0, client.llen(key), _PAGE):
                yield from client.lrange(key, at, at + _PAGE - 1)
        case "stream":
            after = "-"
            while page := client.xrange(key, after, "+", count=_PAGE):
                for _, fields in page:
                    yield b"\0".join(part for pair in fields.items() for part in pair)
                after = "(" + page[-1][0].decode()
