"""The logs of `up` are put aside and bounded, and no server notices."""

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from service.local import stack as stack_module
from service.local.folder import OwnFolder
from service.local.processes import ServerLog, ServerUser
from service.local.stack import Stack
from service.settings.config import Config
from tests.support.harness import eventually

LIMIT = 64 * 1024


@pytest.fixture
def log(folder: Path) -> Iterator[ServerLog]:
    home = OwnFolder.make(folder / "logs", ServerUser.ourselves())
    log = home.log("a.log")
    yield log
    log.close()


def test_a_log_is_put_aside_when_it_has_so_many_bytes(log: ServerLog, folder: Path) -> None:
    aside = folder / "logs" / "a.log.1"
    os.write(log.handle, b"first\n" * 10)
    log.rotate(61)
    assert (log.size(), aside.read_bytes()) == (60, b"")
    log.rotate(60)
    assert (log.size(), aside.read_bytes()) == (0, b"first\n" * 10)
    # Writing continues at the new beginning, not after a hole; of two only the last is kept.
    os.write(log.handle, b"second\n" * 20_000)
    log.rotate(60)
    assert (log.size(), aside.read_bytes()) == (0, b"second\n" * 20_000)


@pytest.mark.prove
def test_the_logs_of_everything_that_up_runs_are_bounded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_module, "LOG_SECONDS", 0.0)
    said: list[str] = []
    config = Config(log_file_bytes=LIMIT)
    with Stack(folder / "data", config, listen="127.0.0.1:0", on_event=said.append) as stack:
        stack.look_after()
        logs = {
            one.relative_to(stack.data_dir).as_posix(): one
            for one in sorted(stack.data_dir.rglob("*.log"))
        }
        for one in logs.values():
            # Beyond the limit by what no program writes at once.
            with one.open("ab") as file:
                file.write(b"x" * LIMIT + b"\n")
        stack.look_after()
        asides = {name: one.with_name(f"{one.name}.1").stat().st_size for name, one in logs.items()}
        sizes = {name: one.stat().st_size for name, one in logs.items()}
        # The server itself continues, at the beginning of what is empty now.
        with psycopg.connect(stack.database_url, autocommit=True) as connection:
            for number in range(3):
                with pytest.raises(psycopg.errors.UndefinedTable):
                    connection.execute(f"SELECT FROM missing_{number}")
        theirs = logs["postgres/postgres.log"]
        eventually("PostgreSQL logs on", lambda: "missing_2" in theirs.read_text())
        assert "\0" not in theirs.read_text()
        assert theirs.stat().st_size < LIMIT
    assert set(logs) == {
        *("postgres/postgres.log", "valkey/valkey.log", "logs/serve.log", "logs/work-1.log")
    }
    assert all(size > LIMIT for size in asides.values())
    assert all(size < LIMIT for size in sizes.values())
    assert not [one for one in said if "aside" in one]


def test_a_log_that_cannot_be_put_aside_stops_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    stack = Stack(folder, Config(), listen="127.0.0.1:0", on_event=said.append)

    def is_full(max_bytes: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stack._api, "rotate_log", is_full)
    stack._bound_logs()
    assert said == ["cannot put a log aside: No space left on device"]
