"""Every command imports all of the command line: it must not take the service with it."""

import subprocess
import sys
from importlib.metadata import version

HEAVY = ("service.app", "sqlalchemy", "psycopg", "redis", "litellm")


def test_the_command_line_imports_nothing_that_only_servers_need() -> None:
    code = f"import sys, service.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_garbage_is_not_looked_for_in_what_a_ready_process_has_loaded() -> None:
    code = (
        "import gc; from service.cli import run; from service import app; run._ready('listening');"
        " print(gc.get_freeze_count() > 100_000 > len(gc.get_objects()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["listening", "True"]


def test_the_version_is_that_of_the_package() -> None:
    command = [sys.executable, "-m", "service.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"palimpsest {version('palimpsest-server')}\n"
