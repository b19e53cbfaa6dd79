"""The prefix index on a real Valkey: right while it is there, silent when it is not."""

import asyncio
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from service.domain.calls.prefix_index import (
    Boundary,
    CachedPrefix,
    PrefixQuery,
    PrefixSurvival,
    Seen,
    Sent,
)
from service.local.valkey import ValkeyServer
from storage.calls import deployment_state, prefix_index
from storage.calls.prefix_index import NullPrefixIndex, RedisPrefixIndex
from storage.engine import redis_link
from tests.support.cluster import cluster
from tests.support.properties import examples

IDS = (b"task0000", b"base0000", b"amend001")
NOW = 1_000_000.0
TTL = 60
COLD = CachedPrefix()


def question(**changes: Any) -> PrefixQuery:
    plain = PrefixQuery(
        memory_key="t:m", group_key="t:g", ids=IDS, deployments=("one",), now=NOW, ttl_seconds=TTL
    )
    return replace(plain, **changes)


def sent(*boundaries: tuple[bytes, int], **changes: Any) -> Sent:
    plain = Sent(
        memory_key="t:m",
        group_key="t:g",
        boundaries=boundaries or tuple(zip(IDS, (100, 300, 350), strict=True)),
        with_group=True,
        deployment="one",
        now=NOW,
        ttl_seconds=TTL,
    )
    return replace(plain, **changes)


def warm(depth: int, tokens: int, touched: float = NOW) -> CachedPrefix:
    """Returns one boundary, fresh and the deepest."""
    one = Boundary(depth=depth, tokens=tokens, touched=int(touched))
    return CachedPrefix(fresh=one, deepest=one)


def connected(url: str, **how: Any) -> RedisPrefixIndex:
    """Returns an index that a machine with much else to do does not take for lost."""
    return RedisPrefixIndex(url, timeout_seconds=60.0, **how)


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """Yields a server that tests leave running."""
    with tempfile.TemporaryDirectory(prefix="palimpsest-test-") as name:
        Path(name).chmod(0o755)
        with ValkeyServer(Path(name) / "valkey") as server:
            yield server


@pytest.fixture
async def index(server: ValkeyServer):  # type: ignore[no-untyped-def]
    """An index on an empty server."""
    with Redis.from_url(server.url) as redis:
        redis.flushall()
    index = connected(server.url)
    yield index
    await index.close()


async def test_what_was_sent_is_warm_for_its_memory_and_group(
    index: RedisPrefixIndex, server: ValkeyServer
) -> None:
    await index.sent(sent())
    assert (await index.look(question())).cached == (warm(3, 350),)
    longer = question(ids=(*IDS, b"amend002"))
    assert (await index.look(longer)).cached == (warm(3, 350),)
    other = question(memory_key="t:m2")
    assert (await index.look(other)).cached == (warm(1, 100),), "the task is shared"
    folded = question(ids=(IDS[0], b"base0001"))
    assert (await index.look(folded)).cached == (warm(1, 100),)
    stranger = question(memory_key="u:m", group_key="u:g")
    assert (await index.look(stranger)).cached == (COLD,), "tenants share nothing"
    assert await index.look(question(ids=())) == Seen(
        known=True, cached=(COLD,), queued_tokens=(0,)
    )
    with Redis.from_url(server.url) as redis:
        keys = sorted(redis.keys())
        assert keys == [b"pc:g:{t:g}:seg", b"pc:{t:m}:seg"]
        assert all(TTL < redis.ttl(key) <= 2 * TTL + 600 for key in keys)


async def test_each_place_has_a_cache_of_its_own(index: RedisPrefixIndex) -> None:
    await index.sent(sent())
    await index.sent(sent((IDS[0], 90), (IDS[1], 280), deployment="two"))
    seen = await index.look(question(deployments=("two", "three", "one")))
    assert seen.known
    assert seen.cached == (warm(2, 280), COLD, warm(3, 350))


async def test_what_was_not_sent_for_long_is_cold_though_the_memory_is_not_quiet(
    index: RedisPrefixIndex,
) -> None:
    await index.sent(sent())
    await index.sent(sent((IDS[0], 100), (IDS[1], 300), now=NOW + 50))
    assert (await index.look(question(now=NOW + 59))).cached == (warm(3, 350),)
    (found,) = (await index.look(question(now=NOW + 60))).cached
    assert found.fresh == Boundary(depth=2, tokens=300, touched=int(NOW) + 50)
    assert found.deepest == Boundary(depth=3, tokens=350, touched=int(NOW))
    (found,) = (await index.look(question(now=NOW + 110))).cached
    assert found.fresh is None
    assert found.deepest is not None


async def test_only_what_was_kept_is_warm(index: RedisPrefixIndex) -> None:
    await index.sent(sent((IDS[1], 300), with_group=False))
    assert (await index.look(question())).cached == (warm(2, 300),)
    assert (await index.look(question(memory_key="t:m2"))).cached == (COLD,)


async def test_reported_counts_are_distinguished_from_estimates(index: RedisPrefixIndex) -> None:
    await index.sent(sent((IDS[0], 100), (IDS[1], 2**40), exact=IDS[1]))
    (found,) = (await index.look(question())).cached
    exact = Boundary(depth=2, tokens=2**31 - 1, touched=int(NOW), exact=True)
    assert found == CachedPrefix(fresh=exact, deepest=exact)
    await index.sent(sent((IDS[1], 300), with_group=False))
    assert (await index.look(question())).cached == (warm(2, 300),)


async def test_a_memory_that_is_never_quiet_does_not_grow_for_ever(
    index: RedisPrefixIndex, server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_index, "MAX_FIELDS", 6)
    monkeypatch.setattr(prefix_index, "KEPT_FIELDS", 4)
    with Redis.from_url(server.url) as redis:
        for fold in range(20):
            ids = (IDS[0], f"base{fold:04}".encode(), f"amen{fold:04}".encode())
            now = NOW + fold
            await index.sent(sent(*zip(ids, (100, 300, 310), strict=True), now=now))
            asked = question(ids=ids, now=now)
            assert (await index.look(asked)).cached == (warm(3, 310, now),)
            assert redis.hlen("pc:{t:m}:seg") <= 6
        before = (IDS[0], b"base0018", b"amen0018")
        kept = (await index.look(question(ids=before, now=NOW + 20))).cached
        assert kept == (warm(3, 310, NOW + 18),), "the oldest went first"


async def test_of_a_very_long_prompt_the_ends_are_kept(
    index: RedisPrefixIndex, server: ValkeyServer
) -> None:
    ids = tuple(f"{number:08}".encode() for number in range(1000))
    boundaries = [(one, 10 * number) for number, one in enumerate(ids, start=1)]
    await index.sent(sent(*boundaries))
    assert (await index.look(question(ids=ids))).cached == (warm(1000, 10_000),)
    longer = (*ids, b"newest00")
    assert (await index.look(question(ids=longer))).cached == (warm(1000, 10_000),)
    branched = (*ids[:60], *(f"x{number:07}".encode() for number in range(400)))
    assert (await index.look(question(ids=branched))).cached == (warm(60, 600),)
    with Redis.from_url(server.url) as redis:
        assert redis.hlen("pc:{t:m}:seg") == 64 - 1 + 192
        assert redis.object("encoding", "pc:{t:m}:seg") == b"listpack"


async def test_what_others_wrote_there_is_not_warm(
    index: RedisPrefixIndex, server: ValkeyServer
) -> None:
    with Redis.from_url(server.url) as redis:
        redis.hset(
            "pc:{t:m}:seg", IDS[1] + prefix_index.deployment_number("one"), "nonsense, longer"
        )
        redis.hset(deployment_state.read_queue("one")[1], "somebody", "many")
    await index.sent(sent((IDS[0], 100)))
    seen = await index.look(question(with_load=True))
    assert seen == Seen(known=True, cached=(warm(1, 100),), queued_tokens=(0,))


async def test_the_queue_of_a_place_is_what_all_processes_say(
    index: RedisPrefixIndex, server: ValkeyServer
) -> None:
    other = connected(server.url)
    await index.queued("one", 700, NOW)
    await index.queued("one", 400, NOW)
    await other.queued("one", 50, NOW + 1)
    await other.queued("two", 7, NOW)
    asked = question(deployments=("one", "two", "three"), with_load=True)
    assert (await index.look(asked)).queued_tokens == (450, 7, 0)
    await index.queued("one", 0, NOW)
    assert (await index.look(asked)).queued_tokens == (50, 7, 0)
    late = replace(asked, now=NOW + 302)
    assert (await index.look(late)).queued_tokens == (0, 0, 0), "they have died"
    await other.close()


async def test_outcomes_are_counted_and_old_ones_count_less(index: RedisPrefixIndex) -> None:
    assert set(await index.outcomes("one", NOW)) == {(0.0, 0.0)}
    for bucket, survived in ((0, True), (0, True), (0, False), (3, False)):
        await index.sent(sent(outcome=PrefixSurvival(bucket=bucket, survived=survived)))
    assert list(await index.outcomes("one", NOW))[:4] == [(2, 1), (0, 0), (0, 0), (0, 1)]
    later = list(await index.outcomes("one", NOW + 3600))
    assert later[:4] == [(1, 0.5), (0, 0), (0, 0), (0, 0.5)]
    assert set(await index.outcomes("one", NOW + 7200)) == {(0.0, 0.0)}
    assert set(await index.outcomes("two", NOW)) == {(0.0, 0.0)}


_PLACES = ("one", "two")
_POOL = [f"segment{number}".encode() for number in range(8)]
_prompts = st.lists(st.sampled_from(_POOL), min_size=1, max_size=6, unique=True)
_steps = st.lists(
    st.tuples(_prompts, st.sampled_from(_PLACES), st.integers(0, 40), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(60))
@given(steps=_steps)
def test_answers_are_those_of_a_dictionary(
    server: ValkeyServer, steps: list[tuple[list[bytes], str, int, bool]]
) -> None:
    """While nothing is pruned."""

    async def check() -> None:
        with Redis.from_url(server.url) as redis:
            redis.flushall()
        index = connected(server.url)
        model: dict[tuple[bytes, str], Boundary] = {}
        now = NOW
        for prompt, deployment, seconds, with_group in steps:
            now += seconds
            boundaries = [(one, 7 * at) for at, one in enumerate(prompt, start=1)]
            asked = question(ids=tuple(prompt), deployments=_PLACES, now=now)
            expected = tuple(_expected(model, asked, deployment) for deployment in _PLACES)
            assert (await index.look(asked)).cached == expected
            kept = boundaries if with_group else boundaries[1:]
            if kept:
                await index.sent(sent(*kept, with_group=with_group, deployment=deployment, now=now))
            for depth, (one, tokens) in enumerate(boundaries, start=1):
                if with_group or depth > 1:
                    where = f"{deployment}:{'group' if depth == 1 else 'memory'}"
                    model[one, where] = Boundary(depth=depth, tokens=tokens, touched=int(now))
        await index.close()

    asyncio.run(check())


def _expected(
    model: dict[tuple[bytes, str], Boundary], asked: PrefixQuery, deployment: str
) -> CachedPrefix:
    found = []
    for depth, one in enumerate(asked.ids, start=1):
        held = model.get((one, f"{deployment}:{'group' if depth == 1 else 'memory'}"))
        if held is not None:
            found.append(replace(held, depth=depth))
    fresh = [one for one in found if one.touched > int(asked.now) - asked.ttl_seconds]
    return CachedPrefix(fresh=fresh[-1] if fresh else None, deepest=found[-1] if found else None)


async def test_a_cluster_is_found_out_and_its_keys_are_spread(folder: Path) -> None:
    with cluster(folder) as urls:
        told = connected(urls[0], cluster=True)
        found_out = connected(urls[1])
        for number in range(30):
            keys = {"memory_key": f"t:m{number}", "group_key": f"t:g{number % 7}"}
            outcome = PrefixSurvival(bucket=1, survived=True)
            await told.sent(sent(outcome=outcome, **keys))
            await told.queued("two", number, NOW)
            asked = question(deployments=("one", "two"), with_load=True, **keys)
            for index in (told, found_out):
                assert await index.look(asked) == Seen(
                    known=True,
                    cached=(warm(3, 350), COLD),
                    queued_tokens=(0, number),
                )
        assert list(await found_out.outcomes("one", NOW))[1] == (30, 0)
        for url in urls:
            with Redis.from_url(url) as node:
                assert node.dbsize() > 0, "the keys are spread"
        await told.close()
        await found_out.close()


async def test_a_cluster_that_is_lost_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_link, "PAUSE_SECONDS", 0.0)
    with cluster(folder) as urls:
        index = connected(urls[0], cluster=True)
        await index.sent(sent())
        assert (await index.look(question())).known
    for _ in range(2):
        assert await index.look(question()) == Seen.nothing(question())
        await index.sent(sent())
    await index.close()


@pytest.fixture
def own_server(folder: Path) -> Iterator[ValkeyServer]:
    """Yields a server of the test's own, to be killed."""
    with ValkeyServer(folder / "valkey") as server:
        yield server


async def test_losing_it_means_nothing_is_warm_until_it_is_back(
    own_server: ValkeyServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(redis_link, "PAUSE_SECONDS", 0.0)
    index = connected(own_server.url)
    await index.sent(sent())
    own_server.kill()
    for _ in range(3):
        assert await index.look(question(with_load=True)) == Seen.nothing(question())
        await index.sent(sent())
        await index.queued("one", 5, NOW)
        assert await index.outcomes("one", NOW) == ()
    own_server.restart()
    assert (await index.look(question())).cached == (COLD,)
    await index.sent(sent())
    assert (await index.look(question())).cached == (warm(3, 350),)
    logged = capfd.readouterr().out
    assert logged.count("redis is gone") == 1
    assert logged.count("redis is back") == 1
    await index.close()


async def test_after_a_failure_it_is_left_alone_for_a_moment(
    own_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("storage.engine.redis_link.time.monotonic", lambda: clock[0])
    index = connected(own_server.url)
    await index.sent(sent())
    own_server.kill()
    assert not (await index.look(question())).known
    own_server.restart()
    assert not (await index.look(question())).known, "not asked again yet"
    clock[0] += redis_link.PAUSE_SECONDS
    assert (await index.look(question())).known
    await index.close()


async def test_flushed_in_the_middle_it_only_forgets(
    index: RedisPrefixIndex, server: ValkeyServer
) -> None:
    await index.sent(sent())
    with Redis.from_url(server.url) as redis:
        redis.flushall()
    assert (await index.look(question())).cached == (COLD,)
    await index.sent(sent())
    assert (await index.look(question())).cached == (warm(3, 350),)


async def test_without_redis_nothing_is_known() -> None:
    index = NullPrefixIndex()
    await index.sent(sent())
    await index.queued("one", 5, NOW)
    assert await index.look(question()) == Seen.nothing(question())
    assert await index.outcomes("one", NOW) == ()
