"""Signals: wake-ups that processes send each other through the database, and that may be lost.

By PostgreSQL's NOTIFY. A signal is sent after the commit that it reports and never within it,
since commits that notify wait for each other. Listeners also poll now and then; a signal only
makes them do so sooner. Words are names and ids, never text of users or models.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence

import psycopg
import structlog
from psycopg import sql

from storage.engine.connections import connection_arguments
from storage.engine.database import Database
from storage.engine.driver import Connection
from storage.engine.errors import StorageError, translate, translated

_log = structlog.get_logger("palimpsest.signals")

#: Receives the words of a signal, in order; None: any may have been missed while the process did
#: not listen.
Heard = Callable[[Sequence[str] | None], None]

#: Bytes of the words of one signal: the server accepts 7,999.
MAX_PAYLOAD_BYTES = 7_900
#: Words that wait to be sent; instead of more, listeners hear that any may have been missed.
MAX_WAITING = 100_000
#: Between two tries to listen, in seconds: doubled from the first up to the second.
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 2.0
#: How long sending may take, in seconds: the server may stop for a while.
SEND_SECONDS = 10.0

#: How long the signal of `are_heard` may take, in seconds.
HEAR_SECONDS = 5.0

_SEPARATOR = ","
#: In place of words: any may have been missed.
_ANY = "*"


class Signals:
    """Sends signals, and receives those of some channels; a process has one."""

    def __init__(self, database: Database, url: str, *, name: str) -> None:
        """Connects at `url` to the server itself, since no pooler passes on LISTEN.

        The server shows `name` as application_name.
        """
        self._database = database
        self._url = url
        self._name = name
        self._heard: dict[str, list[Heard]] = {}
        #: Words to send, by channel, each once; None: too many.
        self._waiting: dict[str, dict[str, None] | None] = {}
        self._some = asyncio.Event()

    def subscribe(self, channel: str, heard: Heard) -> None:
        """Calls `heard` with the signals of a channel. To be called before `run`."""
        self._heard.setdefault(channel, []).append(heard)

    def send(self, channel: str, words: Iterable[str] = ()) -> None:
        """Signals all processes soon, this one included; without words, that there is something.

        Words have no commas; a repeated word is sent once.
        """
        waiting = self._waiting.setdefault(channel, {})
        if waiting is not None:
            waiting.update(dict.fromkeys(words))
            if len(waiting) > MAX_WAITING:
                self._waiting[channel] = None
        self._some.set()

    async def run(self) -> None:
        """Listens and sends until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send_all())
            if self._heard:
                tasks.create_task(self._listen())

    async def flush(self) -> None:
        """Sends at once what waits."""
        self._some.clear()
        waiting, self._waiting = self._waiting, {}
        notices = [
            (channel, payload) for channel, words in waiting.items() for payload in _payloads(words)
        ]
        if not notices:
            return
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._database.notify(notices)
        except TimeoutError:
            _log.warning("signals lost; listeners find out by polling", cause="no reply in time")
        except StorageError as error:
            _log.warning("signals lost; listeners find out by polling", cause=str(error))
        except Exception:
            # The process goes on sending and receiving whatever fails for one signal.
            _log.exception("signals lost; listeners find out by polling")

    async def _send_all(self) -> None:
        while True:
            await self._some.wait()
            await self.flush()

    async def _listen(self) -> None:
        pause, is_lost = FIRST_PAUSE_SECONDS, False
        while True:
            try:
                async with await self._connected() as connection:
                    pause = FIRST_PAUSE_SECONDS
                    if is_lost:
                        _log.warning("the database is back; listening again")
                    is_lost = False
                    for channel in self._heard:
                        self._receive(channel, None)
                    async for notice in connection.notifies():
                        self._receive(notice.channel, _words(notice.payload))
            except (psycopg.Error, OSError) as error:
                # An outage is one line, however often it is tried again.
                if not is_lost:
                    cause = str(translate(error) or error)
                    _log.warning("the database is away; polling, and trying again", cause=cause)
                is_lost = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    async def _connected(self) -> Connection:
        connection = await Connection.connect(
            self._url, autocommit=True, **connection_arguments(self._name)
        )
        try:
            for channel in self._heard:
                await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        except BaseException:
            await connection.close()
            raise
        return connection

    def _receive(self, channel: str, words: Sequence[str] | None) -> None:
        for heard in self._heard[channel]:
            try:
                heard(words)
            except Exception:
                # One that fails must not silence the others.
                _log.exception("a listener failed on a signal", channel=channel)


async def are_heard(database: Database, url: str) -> bool:
    """Returns whether signals through `database` arrive at `url`, which is then direct.

    Raises StorageError.
    """
    channel = f"palimpsest_probe_{secrets.token_hex(8)}"
    with translated():
        connection = await Connection.connect(
            url, autocommit=True, **connection_arguments("palimpsest-probe")
        )
        async with connection:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            await database.notify([(channel, "")])
            heard = connection.notifies(timeout=HEAR_SECONDS, stop_after=1)
            return bool([notice async for notice in heard])


def _payloads(words: dict[str, None] | None) -> Iterator[str]:
    if words is None:
        yield _ANY
        return
    some: list[str] = []
    size = 0
    for word in words:
        size += len(word.encode()) + len(_SEPARATOR)
        if some and size > MAX_PAYLOAD_BYTES:
            yield _SEPARATOR.join(some)
            some, size = [], len(word.encode()) + len(_SEPARATOR)
        some.append(word)
    yield _SEPARATOR.join(some)


def _words(payload: str) -> Sequence[str] | None:
    if payload == _ANY:
        return None
    return payload.split(_SEPARATOR) if payload else ()
