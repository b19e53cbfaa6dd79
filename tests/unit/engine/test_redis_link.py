"""The link to Redis keeps only advice, so that losing it fails nothing."""

from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import TimeoutError as RedisTimeout

from storage.engine.redis_link import RedisLink


async def test_a_write_to_a_connection_that_was_reset_is_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Reset:
        """A pipeline whose connection was reset since it was last used."""

        def execute_command(self, *_: Any) -> None:
            """Queues it."""

        async def __aenter__(self) -> "Reset":
            return self

        async def __aexit__(self, *_: object) -> None:
            """Nothing is open."""

        async def execute(self, **_: Any) -> Any:
            # As uvloop says it.
            raise RuntimeError("unable to perform operation; the handler is closed")

    monkeypatch.setattr(Redis, "pipeline", lambda *_, **__: Reset())
    link = RedisLink("redis://127.0.0.1:1/0")
    assert await link.send([("GET", "k")]) is None
    await link.close()


async def test_connections_that_do_not_close_in_time_fail_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def late(_: Redis) -> None:
        raise RedisTimeout("Timed out closing connection after 0.2")

    link = RedisLink("redis://127.0.0.1:1/0")
    monkeypatch.setattr(Redis, "aclose", late)
    await link.close()
