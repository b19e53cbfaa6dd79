"""A word that is in every text that is sent, and where it must not be found again."""

import traceback
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import Jsonb

from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from tests.support.harness import Servers

#: Is in every text that is sent.
CANARY = "kanarienvogel"

KEY = session_key(DEFAULT_TENANT, "s")
#: A statement with texts of users in its values.
CHUNK = """
INSERT INTO chunk (tenant_id, session_key, position, producer_id, producer_sequence, kind, role,
                   text, observation, thought, action, digest, metadata)
VALUES (%(tenant)s, %(key)s, %(position)s, %(producer)s, %(sequence)s, 'text', %(text)s,
        %(text)s, %(text)s, %(text)s, %(text)s, sha256('x'), %(metadata)s)
RETURNING position
"""


def chunk(position: int, sequence: int, text: str = CANARY) -> dict[str, object]:
    """Values of CHUNK."""
    return {
        "tenant": DEFAULT_TENANT,
        "key": KEY,
        "position": position,
        "producer": CANARY,
        "sequence": sequence,
        "text": text,
        "metadata": Jsonb({CANARY: CANARY}),
    }


def row(position: int) -> dict[str, object]:
    """Returns the same as a row of the table, for SQLAlchemy's Core."""
    return {
        "tenant_id": DEFAULT_TENANT,
        "session_key": KEY,
        "position": position,
        "kind": "text",
        "producer_id": CANARY,
        "producer_sequence": position,
        "digest": b"0" * 32,
        **dict.fromkeys(("role", "text", "observation", "thought", "action"), CANARY),
    }


class PostgresLog:
    """The log of PostgreSQL from now on."""

    def __init__(self, servers: Servers) -> None:
        self._path = Path(servers.postgres._folder) / "postgres.log"
        self._begun = self._path.stat().st_size

    def text(self) -> str:
        """Returns it."""
        with self._path.open("rb") as file:
            file.seek(self._begun)
            return file.read().decode(errors="replace")


async def log_statements(
    admin: psycopg.AsyncConnection, url: str, verbosity: str = "default"
) -> None:
    """Makes the server log the statements that fail, as PostgreSQL does by default."""
    name = conninfo_to_dict(url)["dbname"]
    for setting in (f"log_error_verbosity = {verbosity}", "log_min_error_statement = error"):
        await admin.execute(f"ALTER DATABASE {name} SET {setting}".encode())
    await admin.commit()


async def make_producer(admin: psycopg.AsyncConnection) -> None:
    """Makes the session and the producer that CHUNK is of."""
    await admin.execute(
        "INSERT INTO session (session_key, tenant_id, name) VALUES (%s, %s, 's')",
        (KEY, DEFAULT_TENANT),
    )
    await admin.execute(
        "INSERT INTO producer (session_key, producer_id, tenant_id, epoch, last_sequence)"
        " VALUES (%s, %s, %s, 0, 0)",
        (KEY, CANARY, DEFAULT_TENANT),
    )
    await admin.commit()


def assert_silent(error: BaseException | None) -> None:
    """Neither an error, nor what it came of, nor its traceback as it is logged has texts."""
    assert error is not None
    assert CANARY not in "".join(traceback.format_exception(error))
    while error is not None:
        assert CANARY not in f"{error} {error.args!r}"
        error = error.__cause__ or error.__context__
