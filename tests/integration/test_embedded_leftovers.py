"""What is left of a killed run is ended, and nobody else is."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from service.embedded.postgres import PostgresServer
from service.embedded.valkey import ValkeyServer
from tests.embedded import add, begin, naming, rows
from tests.harness import eventually

SLEEP = shutil.which("sleep")


def test_a_strangers_process_in_the_data_folder_lives_on(folder: Path) -> None:
    pg, vk = folder / "pg", folder / "vk"
    with PostgresServer(pg), ValkeyServer(vk):
        pass
    strangers = [subprocess.Popen(["sleep", "600"], cwd=place) for place in (pg, pg / "data", vk)]
    strangers += [
        # Named and started like ours, and other programs.
        subprocess.Popen(["postgres", "600"], executable=SLEEP, cwd=pg / "data"),
        subprocess.Popen(
            ["tail", "-f", str(vk / "valkey.conf")], cwd=vk, stdout=subprocess.DEVNULL
        ),
    ]
    try:
        with PostgresServer(pg) as server, ValkeyServer(vk):
            assert rows(server.url) == []
        assert [one.poll() for one in strangers] == [None] * len(strangers)
    finally:
        for one in strangers:
            one.kill()
            one.wait()


@pytest.mark.parametrize("moment_seconds", [0.0, 0.05, 0.2, 0.4])
def test_a_start_goes_well_after_one_that_was_killed_during_initdb(
    folder: Path, moment_seconds: float
) -> None:
    home = folder / "pg"
    script = f"""
        from pathlib import Path
        from service.embedded.postgres import PostgresServer
        PostgresServer(Path({str(home)!r})).start()
    """
    parent = begin(script)
    eventually("initdb runs", lambda: naming(f"--pgdata={home}/data.part"), 30)
    time.sleep(moment_seconds)
    parent.kill()
    parent.communicate()
    with PostgresServer(home) as server:
        add(server.url, 1)
        assert rows(server.url) == [1]
    assert naming(str(home)) == []
    assert not (home / "data.part").exists()
    assert not (home / "initdb.password").exists()
