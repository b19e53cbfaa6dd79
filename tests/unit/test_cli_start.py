"""Every command imports all of the command line: it must not take the service with it."""

import subprocess
import sys

HEAVY = ("service.app", "sqlalchemy", "psycopg", "redis", "litellm")


def test_the_command_line_imports_nothing_that_only_servers_need() -> None:
    code = f"import sys, service.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
