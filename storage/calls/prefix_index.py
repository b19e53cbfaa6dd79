"""The prefix cache's index in Redis (or Valkey, alone or as a cluster).

One hash for each memory, and one for each group of memories with the same task and schema. A field
is a boundary's id and the number of a deployment; its value is the tokens up to there and when it
was sent last. One round trip reads all of it, one writes it, and each command uses one key. Without
Redis nothing counts as warm.

Fields have no expiry of their own (Redis before 7.4 has none): each value is compared with the
caller's clock, the whole key expires later, and a hash that grows beyond Redis's compact encoding
loses its oldest fields.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from redis.exceptions import RedisError

from service.domain.calls.prefix_index import Boundary, CachedPrefix, PrefixQuery, Seen, Sent
from storage.calls import deployment_state
from storage.engine.redis_link import TIMEOUT_SECONDS, Command, RedisLink

#: Fields of a hash that Redis keeps as a list pack, at its default.
MAX_FIELDS = 512
#: Fields that pruning leaves, so that not every call prunes.
KEPT_FIELDS = 384
#: Boundaries of one prompt that are looked up and kept: the first ones, which a fold does not
#: change, and the last ones, which the next prompt shares.
FIRST_BOUNDARIES = 64
LAST_BOUNDARIES = 192
#: A key lives this much longer than its fields are fresh: their age says what survives.
SLACK_SECONDS = 600
_SLACK_FACTOR = 2

_VALUE = struct.Struct(">II")
#: The bit of a value whose tokens are the provider's count.
_EXACT = 1 << 31


class NullPrefixIndex:
    """The index without Redis: it stores nothing."""

    async def look(self, question: PrefixQuery) -> Seen:
        """Returns that nothing is known."""
        return Seen.nothing(question)

    async def sent(self, prompt: Sent) -> None:
        """Does nothing."""

    async def queued(self, deployment: str, tokens: int, now: float) -> None:
        """Does nothing."""

    async def outcomes(self, deployment: str, now: float) -> Sequence[tuple[float, float]]:
        """Returns none."""
        return ()


class RedisPrefixIndex:
    """Stores the index in Redis: see `service.llm.prefix_cache.cache.PrefixIndex`."""

    def __init__(
        self,
        url: str,
        *,
        cluster: bool = False,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._link = RedisLink(url, cluster=cluster, timeout_seconds=timeout_seconds)
        self._process = deployment_state.process_name()

    @property
    def is_reachable(self) -> bool:
        """Whether Redis replied when it was last asked."""
        return self._link.is_reachable

    async def close(self) -> None:
        """Closes the connections."""
        await self._link.close()

    async def look(self, question: PrefixQuery) -> Seen:
        """Returns what is warm and what is queued."""
        deployments = [deployment_number(one) for one in question.deployments]
        parts = _parts(question)
        queues = [deployment_state.read_queue(one) for one in question.deployments]
        extra = queues * question.with_load
        since = int(question.now) - question.ttl_seconds
        found = await self._ask(parts, deployments, since, extra)
        if found is None:
            return Seen.nothing(question)
        cached, rest = found
        queued = tuple(deployment_state.total(one, question.now) for one in rest)
        return Seen(
            known=True,
            cached=tuple(_deepest(one) for one in zip(*cached, strict=True))
            or (CachedPrefix(),) * len(deployments),
            queued_tokens=queued or (0,) * len(deployments),
        )

    async def sent(self, prompt: Sent) -> None:
        """Stores a prompt, and the outcome of its prediction."""
        extra: list[Command] = []
        if prompt.outcome is not None:
            extra += deployment_state.learn(prompt.deployment, prompt.outcome, prompt.now)
        seconds = prompt.ttl_seconds * _SLACK_FACTOR + SLACK_SECONDS
        await self._keep(_writes(prompt), seconds, extra)

    async def queued(self, deployment: str, tokens: int, now: float) -> None:
        """Stores how many tokens of prompts this process has under way at a deployment."""
        replies = await self._send(
            deployment_state.write_queue(deployment, self._process, tokens, now)
        )
        self._sound(replies or ())

    async def outcomes(self, deployment: str, now: float) -> Sequence[tuple[float, float]]:
        """Returns how often prefixes of each age survived, and did not; () when not known."""
        replies = await self._send(deployment_state.read_outcomes(deployment, now))
        return deployment_state.counts(replies) if replies and self._sound(replies) else ()

    async def _ask(
        self,
        parts: "Sequence[_BoundaryLookup]",
        deployments: Sequence[bytes],
        since: int,
        extra: Sequence[Command],
    ) -> tuple[list[list[CachedPrefix]], list[Any]] | None:
        """Returns what each deployment has cached of each part, and the replies to `extra`."""
        count = len(parts)
        replies = await self._send([*(_hmget(one, deployments) for one in parts), *extra])
        if replies is None or not self._sound(replies):
            return None
        read = [
            _read_hmget(one, reply, len(deployments), since)
            for one, reply in zip(parts, replies, strict=False)
        ]
        return read, replies[count:]

    async def _keep(
        self, writes: "Sequence[_Write]", seconds: int, extra: Sequence[Command]
    ) -> None:
        plain = [command for one in writes for command in _hset(one, seconds)]
        replies = await self._send([*plain, *extra])
        if replies is not None and self._sound(replies):
            sizes = replies[2 : len(plain) : 3]
            await self._prune(
                [one for one, size in zip(writes, sizes, strict=True) if size > MAX_FIELDS]
            )

    async def _prune(self, grown: "Sequence[_Write]") -> None:
        held = await self._send([("HGETALL", one.key) for one in grown])
        if not held or not self._sound(held):
            return
        old = [_oldest(all_of, set(one.fields)) for one, all_of in zip(grown, held, strict=True)]
        await self._send(
            [("HDEL", one.key, *fields) for one, fields in zip(grown, old, strict=True) if fields]
        )

    async def _send(self, commands: Sequence[Command]) -> list[Any] | None:
        return await self._link.send(commands) if commands else []

    def _sound(self, replies: Sequence[Any]) -> bool:
        """Returns whether no reply is an error; an error counts as if Redis was gone."""
        faults = [one for one in replies if isinstance(one, RedisError)]
        if faults:
            self._link.note_loss(faults[0])
        return not faults


@dataclass(frozen=True, slots=True)
class _BoundaryLookup:
    """Boundaries to look for in one hash, from the first on."""

    key: str
    ids: tuple[bytes, ...]
    #: The depth of each in the prompt.
    depths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Write:
    """What to write in one hash: value by field."""

    key: str
    fields: dict[bytes, bytes]


@lru_cache(maxsize=256)
def deployment_number(deployment: str) -> bytes:
    """Returns two bytes for a deployment; a collision only misleads predictions."""
    return hashlib.blake2b(deployment.encode(), digest_size=2).digest()


def _parts(question: PrefixQuery) -> list[_BoundaryLookup]:
    count = len(question.ids)
    depths = [*range(2, min(count, FIRST_BOUNDARIES) + 1)]
    depths += range(max(FIRST_BOUNDARIES, 1, count - LAST_BOUNDARIES) + 1, count + 1)
    own = tuple(question.ids[depth - 1] for depth in depths)
    parts = [
        _BoundaryLookup(_group(question.group_key), question.ids[:1], (1,)),
        _BoundaryLookup(_memory(question.memory_key), own, tuple(depths)),
    ]
    return [one for one in parts if one.ids]


def _writes(prompt: Sent) -> list[_Write]:
    split = 1 if prompt.with_group else 0
    tail = prompt.boundaries[split:]
    if len(tail) > FIRST_BOUNDARIES + LAST_BOUNDARIES:
        tail = (*tail[: FIRST_BOUNDARIES - 1], *tail[-LAST_BOUNDARIES:])
    number = deployment_number(prompt.deployment)
    return [
        _Write(
            key,
            {
                one + number: _pack(tokens, prompt, one == prompt.exact)
                for one, tokens in boundaries
            },
        )
        for key, boundaries in (
            (_group(prompt.group_key), prompt.boundaries[:split]),
            (_memory(prompt.memory_key), tail),
        )
        if boundaries
    ]


def _hmget(part: _BoundaryLookup, deployments: Sequence[bytes]) -> Command:
    fields = (one + deployment for one in part.ids for deployment in deployments)
    return ("HMGET", part.key, *fields)


def _read_hmget(
    part: _BoundaryLookup, reply: Sequence[Any], deployments: int, since: int
) -> list[CachedPrefix]:
    found = []
    for deployment in range(deployments):
        own = [
            _boundary(depth, value)
            for depth, value in zip(part.depths, reply[deployment::deployments], strict=True)
            if value is not None and len(value) == _VALUE.size
        ]
        fresh = [one for one in own if one.touched > since]
        found.append(
            CachedPrefix(fresh=fresh[-1] if fresh else None, deepest=own[-1] if own else None)
        )
    return found


def _pack(tokens: int, prompt: Sent, exact: bool) -> bytes:
    return _VALUE.pack(min(tokens, _EXACT - 1) | _EXACT * exact, int(prompt.now))


def _boundary(depth: int, value: bytes) -> Boundary:
    tokens, touched = _VALUE.unpack(value)
    return Boundary(
        depth=depth, tokens=tokens & ~_EXACT, touched=touched, exact=bool(tokens & _EXACT)
    )


def _deepest(found: Sequence[CachedPrefix]) -> CachedPrefix:
    """Returns the deepest of one deployment's boundaries; a later hash has deeper ones."""
    return CachedPrefix(
        fresh=next((one.fresh for one in reversed(found) if one.fresh), None),
        deepest=next((one.deepest for one in reversed(found) if one.deepest), None),
    )


def _hset(write: _Write, seconds: int) -> list[Command]:
    key = write.key
    return [
        ("HSET", key, *chain.from_iterable(write.fields.items())),
        ("EXPIRE", key, seconds),
        ("HLEN", key),
    ]


def _oldest(held: dict[bytes, bytes], written: set[bytes]) -> list[bytes]:
    """Returns the fields that are too many: those that were sent longest ago."""

    def touched(field: bytes) -> int:
        value = held[field]
        return int(_VALUE.unpack(value)[1]) if len(value) == _VALUE.size else 0

    old = sorted((one for one in held if one not in written), key=touched)
    return old[: len(held) - KEPT_FIELDS]


def _memory(key: str) -> str:
    # The braces keep all keys of one memory on one node of a cluster.
    return f"pc:{{{key}}}:seg"


def _group(key: str) -> str:
    return f"pc:g:{{{key}}}:seg"
