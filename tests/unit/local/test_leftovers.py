"""Processes whose program is gone are known by their names."""

from types import SimpleNamespace
from typing import Any

from service.local import leftovers


def test_a_program_that_was_deleted_has_the_name_of_its_process() -> None:
    # As macOS says it; Linux keeps the path.
    gone: Any = SimpleNamespace(exe=lambda: "", name=lambda: "postgres")
    there: Any = SimpleNamespace(exe=lambda: "/x/valkey-server", name=lambda: "valkey-serve")
    assert leftovers.program_of(gone) == "postgres"
    assert leftovers.program_of(there) == "valkey-server"
