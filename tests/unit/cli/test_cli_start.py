"""No process imports what it does not need: the first step after a start waits for all of it."""

import subprocess
import sys
from importlib.metadata import version

import pytest

HEAVY = ("service.app.foundation", "sqlalchemy", "psycopg", "redis", "litellm")
#: Not what the others need.
OTHERS = ("grpc", "palimpsest", "service.cli.commands", "service.rpc", "evaluation")


def imported(code: str, names: tuple[str, ...]) -> list[str]:
    """Returns those of `names` that a process has imported once it has run `code`."""
    code = f"import sys; {code}; print(*(name for name in {names!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_command_line_imports_nothing_that_only_servers_need() -> None:
    assert imported("import service.cli.commands", HEAVY) == []


@pytest.mark.prove
@pytest.mark.parametrize("command", ["up", "serve", "work", "executor", "migrate"])
def test_the_commands_of_the_service_import_neither_the_others_nor_the_client(
    command: str,
) -> None:
    ended = f"""
from service import cli
sys.argv = ["palimpsest", {command!r}, "--help"]
try: cli.main()
except SystemExit: print("said")
print()"""
    assert imported(ended, ("service.cli.run", *OTHERS))[-1] == "service.cli.run"


@pytest.mark.prove
@pytest.mark.parametrize("process", ["work", "executor"])
def test_workers_and_executors_import_nothing_that_only_the_api_needs(process: str) -> None:
    code = f"from service.cli import run; from service.app import {process}"
    assert imported(code, OTHERS) == []


def test_executors_import_no_worker() -> None:
    names = ("service.app.worker", "service.llm.gateway.gateway", "service.dispatch.queue")
    server = "service.llm.executor.server"
    assert imported("from service.app import executor", (*names, server)) == [server]


def test_garbage_is_not_looked_for_in_what_a_ready_process_has_loaded() -> None:
    code = (
        "import gc; from service.cli import run; from service.app import serve;"
        " run._ready('listening');"
        " print(gc.get_freeze_count() > 100_000 > len(gc.get_objects()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["listening", "True"]


def test_the_version_is_that_of_the_package() -> None:
    command = [sys.executable, "-m", "service.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"palimpsest {version('palimpsest-server')}\n"


def test_who_asks_the_offline_model_loads_no_litellm() -> None:
    code = (
        "import asyncio; from tests.unit.calls.test_transport import OFFLINE, transport;"
        " assert asyncio.run(transport().complete(OFFLINE, 'offline/extractive')).text"
    )
    assert imported(code, ("service.llm.offline.model", "litellm")) == ["service.llm.offline.model"]
