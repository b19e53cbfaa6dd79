"""Tries what `up` and an executor leave on a machine as another user of that machine.

Where the test does not run as root, it checks the rights of files and folders instead.
"""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from service.local.stack import Stack
from service.settings.config import Config
from tests.support.harness import Process

#: A user that runs nothing here.
STRANGER = 54_321
SYSTEM_PYTHON = "/usr/bin/python3"

#: Prints, for each file, socket and port of its argument, what came of it.
TRY = """
import json, os, socket, struct, sys
tried = json.loads(sys.argv[1])
found = {"uid": os.geteuid()}
for path in tried["files"]:
    try:
        found[path] = f"read {len(open(path, 'rb').read(10))} bytes"
    except OSError as error:
        found[path] = type(error).__name__
for path in tried["sockets"]:
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.connect(path)
            found[path] = "connected"
        except OSError as error:
            found[path] = type(error).__name__
for user, port in tried["postgres"]:
    with socket.create_connection(("127.0.0.1", port)) as one:
        body = struct.pack(">I", 196608) + b"user\\0" + user.encode() + b"\\0\\0"
        one.sendall(struct.pack(">I", len(body) + 4) + body)
        kind, _, number = struct.unpack(">cII", one.recv(9))
        found[f"postgres {user}"] = f"{kind.decode()} {number}"
print(json.dumps(found))
"""
#: PostgreSQL asks for a password by SCRAM (AuthenticationSASL); 0 would be "come in".
SCRAM = "R 10"


def everything(folder: Path) -> tuple[list[Path], list[Path]]:
    """Returns the files below a folder, and the sockets."""
    found = [Path(base, name) for base, _, names in os.walk(folder) for name in names]
    sockets = [one for one in found if stat.S_ISSOCK(one.stat().st_mode)]
    return [one for one in found if one not in sockets], sockets


def as_stranger(
    files: Sequence[Path], sockets: Sequence[Path], postgres: Sequence[tuple[str, int]] = ()
) -> dict[str, object]:
    tried = {
        "files": [str(one) for one in files],
        "sockets": [str(one) for one in sockets],
        "postgres": postgres,
    }
    python = SYSTEM_PYTHON if Path(SYSTEM_PYTHON).exists() else sys.executable
    done = subprocess.run(
        [python, "-c", TRY, json.dumps(tried)],
        user=STRANGER,
        group=STRANGER,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        check=True,
        timeout=200,
    )
    found: dict[str, object] = json.loads(done.stdout)
    assert found.pop("uid") == STRANGER
    return found


def check_closed(folder: Path) -> tuple[list[Path], list[Path]]:
    """Checks that others can neither read a file nor connect to a socket below a folder."""
    files, sockets = everything(folder)
    if os.geteuid() == 0:
        found = as_stranger(files, sockets)
        assert {*found.values()} == {"PermissionError"}, found
    for one in (*files, *sockets):
        ways = [one, *list(one.parents)[: len(one.relative_to(folder).parts)]]
        # Some folder on the way, or the file itself, is closed to others.
        assert any(not way.stat().st_mode & 0o001 for way in ways[1:]) or not (
            one.stat().st_mode & 0o006
        ), one
    return files, sockets


@pytest.mark.prove
def test_what_up_runs_is_closed_to_other_users(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Sockets of health are in a folder of their own.
    run_dir = folder / "health"
    monkeypatch.setenv("PALIMPSEST_RUN_DIR", str(run_dir))
    # Closed whatever the umask is.
    before = os.umask(0)
    try:
        data = folder / "data"
        with Stack(data, Config(), listen="127.0.0.1:0") as stack:
            files, sockets = check_closed(data)
            names = {one.name for one in files}
            assert {"settings.json", "pg_hba.conf", "serve.log"} <= names
            assert len(files) > 500
            assert any("valkey" in str(one) for one in sockets)
            assert len(check_closed(run_dir)[1]) >= 2
            port = urlsplit(stack.database_url).port
            assert port is not None
            if os.geteuid() == 0:
                logins = [("postgres", port), ("palimpsest", port), ("nobody", port)]
                found = as_stranger([], [], logins)
                assert {*found.values()} == {SCRAM}, found
    finally:
        os.umask(before)


@pytest.mark.prove
def test_the_socket_of_an_executor_is_its_user_s_alone(url: str, folder: Path) -> None:
    folder.chmod(0o777)
    path = folder / "executor.sock"
    before = os.umask(0)
    try:
        settings = {"PALIMPSEST_DATABASE_URL": url, "PALIMPSEST_RUN_DIR": str(folder / "health")}
        process = Process(f"executor --socket {path}", settings, "calling", forks=False)
    finally:
        os.umask(before)
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        if os.geteuid() == 0:
            assert as_stranger([], [path]) == {str(path): "PermissionError"}
        check_closed(folder / "health")
    finally:
        process.close()
