"""The prefix index on a real Valkey: right while it is there, silent when it is not."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from service.embedded.valkey import ValkeyServer
from storage import prefix_index
from storage.prefix_index import NullPrefixIndex, RedisPrefixIndex

IDS = (b"task0000", b"base0000", b"amend001")


@pytest.fixture
def valkey() -> Iterator[ValkeyServer]:
    with tempfile.TemporaryDirectory(prefix="palimpsest-test-") as name:
        Path(name).chmod(0o755)
        with ValkeyServer(Path(name) / "valkey") as server:
            yield server


async def test_what_was_sent_is_warm_for_its_memory_and_group(valkey: ValkeyServer) -> None:
    index = RedisPrefixIndex(valkey.url)
    await index.touch("t:m1", "t:g", IDS, 60)
    assert await index.lookup("t:m1", "t:g", IDS) == set(IDS)
    assert await index.lookup("t:m2", "t:g", IDS) == {IDS[0]}, "the task is shared"
    assert await index.lookup("u:m1", "u:g", IDS) == set(), "tenants share nothing"
    assert await index.lookup("t:m1", "t:g", ()) == set()
    with Redis.from_url(valkey.url) as redis:
        keys = sorted(redis.keys())
        assert keys == [b"pc:g:{t:g}:seg", b"pc:{t:m1}:seg"]
        assert all(0 < redis.ttl(key) <= 60 for key in keys)
        assert b"secret" not in b"".join(keys)
    await index.close()


async def test_what_was_not_sent_for_long_is_cold_though_the_memory_is_not_quiet(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = RedisPrefixIndex(valkey.url)
    now = time.time()
    await index.touch("t:m", "t:g", IDS, 60)
    monkeypatch.setattr("storage.prefix_index.time.time", lambda: now + 50)
    await index.touch("t:m", "t:g", IDS[:2], 60)
    assert await index.lookup("t:m", "t:g", IDS) == set(IDS)
    monkeypatch.setattr("storage.prefix_index.time.time", lambda: now + 70)
    assert await index.lookup("t:m", "t:g", IDS) == set(IDS[:2])
    await index.close()


async def test_a_memory_that_is_never_quiet_does_not_grow_for_ever(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_index, "SPARE_FIELDS", 4)
    index = RedisPrefixIndex(valkey.url)
    with Redis.from_url(valkey.url) as redis:
        for fold in range(20):
            ids = (IDS[0], f"base{fold:04}".encode())
            await index.touch("t:m", "t:g", ids, 60)
            assert await index.lookup("t:m", "t:g", ids) == set(ids)
            assert redis.hlen("pc:{t:m}:seg") <= 1 + 4
            assert 0 < redis.ttl("pc:{t:m}:seg") <= 60
    await index.close()


async def test_what_others_wrote_there_is_not_warm(valkey: ValkeyServer) -> None:
    index = RedisPrefixIndex(valkey.url)
    with Redis.from_url(valkey.url) as redis:
        redis.hset("pc:{t:m}:seg", IDS[1], "nonsense")
    await index.touch("t:m", "t:g", IDS[:1], 60)
    assert await index.lookup("t:m", "t:g", IDS) == {IDS[0]}
    await index.close()


async def test_losing_it_means_nothing_is_warm_until_it_is_back(
    valkey: ValkeyServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(prefix_index, "PAUSE_SECONDS", 0.0)
    index = RedisPrefixIndex(valkey.url)
    await index.touch("t:m", "t:g", IDS, 60)
    valkey.kill()
    for _ in range(3):
        assert await index.lookup("t:m", "t:g", IDS) == set()
        await index.touch("t:m", "t:g", IDS, 60)
    valkey.restart()
    await index.touch("t:m", "t:g", IDS, 60)
    assert await index.lookup("t:m", "t:g", IDS) == set(IDS)
    logged = capfd.readouterr().out
    assert logged.count("redis is gone") == 1
    assert logged.count("redis is back") == 1
    await index.close()


async def test_without_redis_nothing_is_warm() -> None:
    index = NullPrefixIndex()
    await index.touch("t:m", "t:g", IDS, 60)
    assert await index.lookup("t:m", "t:g", IDS) == set()
