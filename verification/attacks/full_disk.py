"""The disk of PostgreSQL's data, and that of its write-ahead log, get full while clients append."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from service.local.postgres import NAME
from service.local.running import database_url
from tests.acceptance.memories.kept_memory import QUICK
from tests.support.acked import Traffic, differing, in_a_thread, kept, refusal
from tests.support.harness import Process, eventually
from tests.support.volumes import CannotMount, Volume, data_and_log
from verification.attacks.attack import Attack, Outcome, Stage
from verification.chaos.log_looking import look

#: Chunks that each producer has acked before a disk is full, and after it.
ACKED = 12
PRODUCERS = {True: 3, False: 16}
#: Within this a statement is done, or PostgreSQL is gone: only one that hangs is cut off.
ANSWER_SECONDS = 30.0
#: How often each disk is filled.
ROUNDS = {True: 1, False: 5}


def up(data: Volume) -> Process:
    """Starts `palimpsest up` on a volume."""
    command = f"up --data-dir {data.folder} --listen 127.0.0.1:0"
    return Process(command, QUICK, "Palimpsest listens at ")


def address_of(process: Process) -> str:
    """Returns where an `up` listens."""
    return process.ready_line.removeprefix("Palimpsest listens at ").partition(";")[0]


class Refusals:
    """Writes until one is refused for a reason, and keeps its words."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._number = 0
        self.words = ""

    def await_reason(self, reason: str) -> str:
        """Waits until a write is refused for that reason; its words."""
        eventually(f"a write is refused: {reason}", lambda: self._is_refused(reason))
        return self.words

    def _is_refused(self, reason: str) -> bool:
        # Sessions take room, until there is none.
        self._number += 1
        found, self.words = refusal(self._address, f"another-{self._number}")
        return found == reason


def fill_data(data: Volume, refused: Refusals) -> list[str]:
    """Fills the disk of the data until writes are refused; what is wrong with the words."""
    data.fill()
    words = refused.await_reason("DATABASE_FULL")
    return [] if "disk is full" in words else [f"told only: {words}"]


def fill_log(log: Volume, service: Process) -> list[str]:
    """Fills the disk of the write-ahead log until PostgreSQL is gone; what is wrong."""
    log.fill()
    said = f"PostgreSQL does not start: the disk of {log.folder} is full"
    before = service.log().count(said)

    def gone() -> bool:
        if service.log().count(said) > before:
            return True
        superuser = superuser_url(log.folder.parents[2])
        try:
            with (
                psycopg.connect(superuser, autocommit=True, connect_timeout=5) as one,
                cut_off(one, ANSWER_SECONDS),
            ):
                # The next file of the log is needed at once.
                one.execute("SELECT pg_switch_wal()")
                one.execute("CREATE TABLE IF NOT EXISTS filling AS SELECT 1 AS one")
                one.execute("INSERT INTO filling VALUES (1)")
        except psycopg.OperationalError:
            # It ends, or has ended: the purpose. Or it hangs: then that is reported in the end.
            return False
        return False

    eventually("PostgreSQL ends (it may hang), and `up` says why", gone)
    return []


@contextmanager
def cut_off(connection: psycopg.Connection[Any], seconds: float) -> Iterator[None]:
    """Ends a connection that is used for longer, whatever its server does.

    A server that hangs heeds no timeout of its own, nor a request to cancel.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        watchdog = threading.Timer(seconds, end.shutdown, (socket.SHUT_RDWR,))
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()
            watchdog.join()


def superuser_url(data_dir: Path) -> str:
    """URL of an `up`'s database for the superuser; one that leads nowhere when it is down."""
    found = database_url(data_dir) or f"postgresql://{NAME}:-@127.0.0.1:1/{NAME}"
    password = (data_dir / "postgres" / "superuser.password").read_text().strip()
    return f"postgresql://postgres:{password}@{found.rpartition('@')[2]}"


def goes_on(traffic: Traffic, make_room: Callable[[], None]) -> None:
    """Makes room, and waits until every producer has acks again."""
    make_room()
    traffic.await_more(ACKED)


def fill_disks(*, short: bool) -> Outcome:
    """Runs the attack, which waits for servers and threads."""
    wrong: list[str] = []
    with data_and_log() as (data, log):
        service = up(data)
        try:
            address = address_of(service)
            traffic, refused = Traffic(address, PRODUCERS[short]), Refusals(address)
            traffic.start()
            for _ in range(ROUNDS[short]):
                traffic.await_more(ACKED)
                wrong += fill_data(data, refused)
                goes_on(traffic, data.make_room)
                wrong += fill_log(log, service)
                refused.await_reason("DATABASE_UNAVAILABLE")
                goes_on(traffic, log.make_room)
            traffic.end()
            wrong += in_a_thread(kept(address, traffic))
            url = database_url(data.folder)
            assert url is not None, "it runs"
            wrong += in_a_thread(differing(url, traffic.names))
            wrong += [one.what for one in look(data.folder / "logs").violations]
            wrong += ["Valkey died"] * ("Valkey died" in service.log())
            service.stop()
        finally:
            service.close()
    return Outcome(
        held=not wrong,
        found=(
            f"{sum(traffic.acked.values())} chunks acked, each disk full"
            f" {ROUNDS[short]} times; wrong: {'; '.join(wrong) or 'nothing'}"
        ),
    )


async def _run(stage: Stage) -> Outcome:
    try:
        return fill_disks(short=stage.short)
    except CannotMount as error:
        # In CI it can be mounted, and what is not tried did not hold.
        return Outcome(held=not os.environ.get("CI"), found=f"not tried: {error}")


ATTACK = Attack(
    name="full_disk",
    finding="issue 18, item 13",
    summary="fills the disks of PostgreSQL's data and of its write-ahead log under load",
    goal=(
        "everything acked is there in order, once; what is refused is told to be for a full"
        " disk; all goes on by itself when there is room"
    ),
    before=(
        "not tried; told as a database that cannot be reached, and `up` told ten lines of"
        " PostgreSQL's log twice a second"
    ),
    run=_run,
)
