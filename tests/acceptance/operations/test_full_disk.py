"""`palimpsest up` on a disk that is full, or gets so: it says so, and continues with room again."""

import json
import os
from collections.abc import Iterator

import psycopg
import pytest

from tests.acceptance.cli.test_cli import assert_one_clear_line, run
from tests.support.acked import Traffic, in_a_thread, kept
from tests.support.harness import Servers
from tests.support.volumes import CannotMount, Volume, data_and_log
from verification.attacks.full_disk import Refusals, address_of, cut_off, up

pytestmark = [pytest.mark.prove, pytest.mark.timeout(400)]
ACKED = 8


@pytest.fixture
def data() -> Iterator[Volume]:
    try:
        with data_and_log() as (data, _):
            yield data
    except CannotMount as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def test_a_full_disk_is_reported_and_everything_continues_when_there_is_room(data: Volume) -> None:
    cluster = data.folder / "postgres" / "data"
    data.fill()
    done = run("up", "--data-dir", str(data.folder), "--listen", "127.0.0.1:0")
    assert_one_clear_line(done, f"the disk of {cluster} is full; make room")
    data.make_room()
    service = up(data)
    try:
        traffic = Traffic(address_of(service), 2)
        traffic.start()
        traffic.await_more(ACKED)
        data.fill()
        refused = Refusals(address_of(service))
        words = refused.await_reason("DATABASE_FULL")
        assert words.startswith("the database's disk is full; what was acked is kept")
        looked = run("doctor", "--json", "--data-dir", str(data.folder))
        found = {one["said"]: one for one in map(json.loads, looked.stdout.splitlines())}
        (said,) = [said for said in found if said.startswith("full: 0 MB free at ")]
        assert (found[said]["name"], found[said]["level"]) == ("disk", "bad")
        assert looked.returncode == 1
        data.make_room()
        traffic.await_more(ACKED)
        traffic.end()
        assert in_a_thread(kept(address_of(service), traffic)) == []
        assert service.stop() == 0
    finally:
        service.close()


def test_a_database_that_hangs_holds_the_attack_up_no_longer_than_it_says(
    servers: Servers,
) -> None:
    with psycopg.connect(servers.as_superuser(servers.new_database()), autocommit=True) as one:
        with cut_off(one, 60):
            assert one.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError), cut_off(one, 0.1):
            one.execute("SELECT pg_sleep(3600)")
        assert one.closed
