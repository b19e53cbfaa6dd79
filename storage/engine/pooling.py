"""Detects poolers: whether a connection is one session of the server.

A pooler in transaction mode may give each transaction another session. Then the settings of a
connection are missing, and clients share prepared statements under the same names.
"""

import re
import secrets
from contextlib import AsyncExitStack

import psycopg

from storage.engine.driver import Connection
from storage.engine.errors import translated

#: How long a login may take, in seconds.
CONNECT_SECONDS = 5
#: How often it is checked: a pooler may give the same session again by chance.
CHECKS = 5
#: PgBouncer's message about `options`, unless it is configured to drop them.
_REFUSED = re.compile("unsupported startup parameter")
_SESSION = "SELECT pg_backend_pid(), current_setting('app.session', true)"


async def lost_sessions(url: str) -> str:
    """Returns why a connection to `url` is not one session of the server; empty when it is.

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
                    return "a pooler refuses the settings of a new connection"
                raise
            for _ in range(CHECKS):
                own = await _session(first)
                async with second.transaction():
                    shared = await _session(second)
                    now = await _session(first)
                if own[1] != mark or shared[1] != mark:
                    return "a pooler drops the settings of a new connection"
                if own[0] == shared[0] or own[0] != now[0]:
                    return "a pooler gives each transaction another connection to the server"
    return ""


async def _session(connection: Connection) -> tuple[int, str | None]:
    """Returns the process id of a connection's session, and the mark that is set there."""
    row = await (await connection.execute(_SESSION)).fetchone()
    assert row is not None, "a query without FROM has a row"
    return row[0], row[1]
