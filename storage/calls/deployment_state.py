"""Stores in Redis the queue of a model's deployment, and how long its cache keeps prefixes.

The queue is a hash with a field for each process, which only that process writes: the field of one
that died stops counting after a while. Outcomes are counted by hours, so that old ones count less
and then nothing.
"""

import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from service.domain.calls.prefix_index import PrefixSurvival
from storage.engine.redis_link import Command

#: How long it is kept without a write, in seconds.
KEPT_SECONDS = 3600
#: Older fields do not count: their process has died, or has no calls under way.
QUEUE_SECONDS = 300
#: Ages that outcomes are counted by.
BUCKETS = 6
#: The weight of an outcome of the hour before.
OLD_WEIGHT = 0.5
_MAX_TOKENS = 2**40


def process_name() -> str:
    """Returns a unique name for this process."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def read_queue(deployment: str) -> Command:
    """Returns the command that reads a queue."""
    key = _key(deployment, "q")
    return ("HGETALL", key)


def write_queue(deployment: str, process: str, tokens: int, now: float) -> list[Command]:
    """Returns the commands that write the tokens that one process has under way."""
    key = _key(deployment, "q")
    if tokens <= 0:
        return [("HDEL", key, process)]
    return [
        ("HSET", key, process, f"{tokens} {int(now)}"),
        ("EXPIRE", key, KEPT_SECONDS),
    ]


def total(reply: Any, now: float) -> int:
    """Returns the tokens of all processes that wrote recently."""
    held: Mapping[bytes, bytes] = reply if isinstance(reply, Mapping) else {}
    tokens = 0
    for value in held.values():
        words = value.split()
        if len(words) == 2 and all(word.isdigit() for word in words):
            fresh = int(words[1]) > now - QUEUE_SECONDS
            tokens += min(int(words[0]), _MAX_TOKENS) if fresh else 0
    return tokens


def learn(deployment: str, outcome: PrefixSurvival, now: float) -> list[Command]:
    """Returns the commands that count an outcome."""
    key = _key(deployment, f"s:{int(now) // KEPT_SECONDS}")
    field = f"{'h' if outcome.survived else 'm'}{outcome.bucket}"
    return [
        ("HINCRBY", key, field, 1),
        ("EXPIRE", key, 2 * KEPT_SECONDS),
    ]


def read_outcomes(deployment: str, now: float) -> list[Command]:
    """Returns the commands that read the counts of this hour and the one before."""
    hour = int(now) // KEPT_SECONDS
    keys = [_key(deployment, f"s:{one}") for one in (hour, hour - 1)]
    return [("HGETALL", key) for key in keys]


def counts(replies: Sequence[Any]) -> list[tuple[float, float]]:
    """Returns for each bucket how often a prefix survived, and did not."""
    sums = [[0.0, 0.0] for _ in range(BUCKETS)]
    for reply, weight in zip(replies, (1.0, OLD_WEIGHT), strict=True):
        held: Mapping[bytes, bytes] = reply if isinstance(reply, Mapping) else {}
        for bucket in range(BUCKETS):
            for side, letter in enumerate("hm"):
                value = held.get(f"{letter}{bucket}".encode(), b"0")
                sums[bucket][side] += weight * int(value) if value.isdigit() else 0.0
    return [(hits, misses) for hits, misses in sums]


def _key(deployment: str, what: str) -> str:
    # Hashed, since a model's name may be any text.
    name = hashlib.blake2b(deployment.encode(), digest_size=8).hexdigest()
    return f"pc:d:{{{name}}}:{what}"
