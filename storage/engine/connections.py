"""Opens connections to the server, with the settings that each needs."""

from collections.abc import Mapping
from typing import Any

from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from storage import tables
from storage.engine.driver import Connection

#: How long a caller waits for a free connection, in seconds.
POOL_SECONDS = 10.0

#: The settings of every connection. A lock is waited for briefly: a transaction that holds it
#: longer is in trouble, and the caller has to retry. Durability is not left to the server's
#: defaults: an ack means that the commit is on disk.
_SETTINGS = {
    "lock_timeout": "5s",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "60s",
    "synchronous_commit": "on",
    "TimeZone": "UTC",
    # Every frequent statement has an index, and plans are kept: one that was made while a table
    # was empty would read all of it until the table is analyzed. The same goes for PostgreSQL's
    # own statements that check keys. None is worth compiling, which PostgreSQL decides by the
    # same wrong estimates.
    "enable_seqscan": "off",
    "jit": "off",
}

#: Detects a host that vanished: it does not acknowledge data for so long, or the probes of an
#: idle connection.
_SILENCE = {
    "tcp_user_timeout": 15_000,
    "keepalives_idle": 30,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}


def connection_arguments(
    name: str, *, role: str = tables.APP_ROLE, pooled: bool = False
) -> dict[str, Any]:
    """Returns the arguments of a connection. The server shows `name` as application_name."""
    opened: dict[str, Any] = {
        "application_name": name,
        "connect_timeout": 5,
        # Never a standby, be it one of several hosts or at a name that is about to move.
        "target_session_attrs": "read-write",
        **_SILENCE,
    }
    if pooled:
        opened["prepare_threshold"] = None
    else:
        settings = {"role": role, **_SETTINGS}
        opened["options"] = " ".join(f"-c {key}={one}" for key, one in settings.items())
    return opened


def settings_statement(role: str) -> str:
    """Returns one statement that gives a transaction the settings of a connection."""
    settings = {"role": role, **_SETTINGS}
    return "SELECT " + ", ".join(
        f"set_config('{key}', '{value}', true)" for key, value in settings.items()
    )


def sqlalchemy_url(url: str) -> URL:
    """Returns a postgresql:// URL in SQLAlchemy's form, with the psycopg driver.

    Raises psycopg.ProgrammingError when libpq cannot read it.
    """
    known = conninfo_to_dict(url)
    if "," not in str(known.get("host")):
        return make_url(url).set(drivername="postgresql+psycopg")
    # SQLAlchemy accepts several hosts, but only after the question mark.
    parts = {name: str(value) for name, value in known.items()}
    return URL.create(
        "postgresql+psycopg",
        username=parts.pop("user", None),
        password=parts.pop("password", None),
        database=parts.pop("dbname", None),
        query=parts,
    )


def core_pool(url: str, arguments: Mapping[str, Any], *, pool_size: int) -> AsyncEngine:
    """Returns SQLAlchemy's pool, for statements of its Core; it opens no connection yet."""
    return create_async_engine(
        sqlalchemy_url(url),
        # We send BEGIN ourselves, together with the tenant, in one round trip.
        isolation_level="AUTOCOMMIT",
        # Errors are logged, and values are texts of users.
        hide_parameters=True,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=POOL_SECONDS,
        connect_args={**arguments, "async_creator_fn": Connection.connect},
    )


def direct_pool(
    url: str, arguments: Mapping[str, Any], *, pool_size: int
) -> AsyncConnectionPool[Connection]:
    """Returns the driver's own pool, for hot paths; it opens no connection yet."""
    return AsyncConnectionPool(
        url,
        connection_class=Connection,
        kwargs={"autocommit": True, **arguments},
        min_size=1,
        max_size=pool_size,
        timeout=POOL_SECONDS,
        reconnect_timeout=5.0,
        open=False,
    )
