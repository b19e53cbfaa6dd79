"""Detects poolers: whether a connection is one session of the server.

A pooler in transaction mode gives each transaction another session. There the settings of a
connection are missing, and clients find, or overwrite, each other's prepared statements.
"""

import re
import secrets
from contextlib import AsyncExitStack

import psycopg

from storage.engine.driver import Connection
from storage.engine.errors import translated

#: How long a login may take, in seconds.
CONNECT_SECONDS = 5
#: Checks: with other clients, a pooler may give the same session by chance.
LOOKS = 5
#: PgBouncer's message about `options`, unless it is configured to drop them.
_REFUSED = re.compile("unsupported startup parameter")
_WHO = "SELECT pg_backend_pid(), current_setting('app.session', true)"


async def lost_sessions(url: str) -> str:
    """Returns why connections to `url` are no sessions of the server; empty when they are.

    Opens two connections and closes them. Raises StorageError when it cannot.
    """
    mark = secrets.token_hex(8)
    with translated():
        async with AsyncExitStack() as stack:
            try:
                first, second = [
                    await stack.enter_async_context(
                        await Connection.connect(
                            url,
                            autocommit=True,
                            prepare_threshold=None,
                            connect_timeout=CONNECT_SECONDS,
                            options=f"-c app.session={mark}",
                        )
                    )
                    for _ in range(2)
                ]
            except psycopg.OperationalError as error:
                if _REFUSED.search(str(error)):
                    return "a pooler refuses what a connection is told when it opens"
                raise
            for _ in range(LOOKS):
                own = await _who(first)
                async with second.transaction():
                    shared = await _who(second)
                    now = await _who(first)
                if own[1] != mark or shared[1] != mark:
                    return "a pooler drops what a connection is told when it opens"
                if own[0] == shared[0] or own[0] != now[0]:
                    return "a pooler gives each transaction another connection to the server"
    return ""


async def _who(connection: Connection) -> tuple[int, str | None]:
    """Returns the server's process of a connection, and the mark that is set there."""
    row = await (await connection.execute(_WHO)).fetchone()
    assert row is not None, "a query without FROM has a row"
    return row[0], row[1]
