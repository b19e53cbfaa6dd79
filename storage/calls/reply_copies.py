"""Copies of replies in Redis: faster to read than the durable row, and never instead of it.

A copy has a keyed hash with a secret of the database. So a process with access to Redis cannot make
up replies, and copies of another database's processes are ignored.
"""

import hashlib
import hmac
import json
import zlib

import structlog

from service.domain.prompting.ends import is_kept_by_text, kept_reply
from service.domain.prompting.flows import ModelReply
from storage.engine.redis_link import Command

_log = structlog.get_logger("palimpsest.prefix_cache")

#: How long a copy is kept, in seconds.
COPY_SECONDS = 24 * 3600
#: Bytes of a packed copy; longer replies have their durable row only.
MAX_COPY_BYTES = 64 * 1024
_MAC_BYTES = 16


class ReplyCopies:
    """Reads and writes copies for the processes of one database."""

    def __init__(self, secret: bytes) -> None:
        self._key = hashlib.blake2b(secret, digest_size=32, person=b"reply copies").digest()

    def read(self, key: str) -> Command:
        """Returns the command that reads a copy; `key` is the tenant and the call's key."""
        name = _name(key)
        return Command(name, ("GET", name))

    def write(self, key: str, reply: ModelReply) -> list[Command]:
        """Returns the commands that write a copy of a complete reply; none if it is too long."""
        if not is_kept_by_text(reply.text, reply.end):
            # A copy does not have its end; the durable row has.
            return []
        name = _name(key)
        packed = zlib.compress(json.dumps([reply.text, reply.model]).encode(), level=1)
        # After the compressed data, where the release before does not read.
        counts = (reply.input_tokens, reply.cached_tokens, reply.output_tokens)
        packed += json.dumps(counts).encode()
        if len(packed) > MAX_COPY_BYTES:
            return []
        return [Command(name, ("SET", name, self._mac(name, packed) + packed, "EX", COPY_SECONDS))]

    def decode(self, key: str, value: bytes | None) -> ModelReply | None:
        """Returns the copy; None when there is none, or it is not ours."""
        if value is None:
            return None
        mac, packed = value[:_MAC_BYTES], value[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(_name(key), packed)):
            _log.warning("a copy of a reply in redis is not ours; the durable one serves")
            return None
        reader = zlib.decompressobj()
        text, model = json.loads(reader.decompress(packed))
        # The release before kept no counts.
        counts = json.loads(reader.unused_data or b"[0, null, 0]")
        input_tokens, cached_tokens, output_tokens = counts
        # The release before copied those that were cut off, too.
        text, end = kept_reply(text, None)
        return ModelReply(
            text=text,
            model=model,
            input_tokens=input_tokens,
            cached_tokens=cached_tokens,
            output_tokens=output_tokens,
            end=end,
        )

    def _mac(self, name: str, packed: bytes) -> bytes:
        mac = hashlib.blake2b(name.encode() + b"\0", key=self._key, digest_size=_MAC_BYTES)
        mac.update(packed)
        return mac.digest()


def _name(key: str) -> str:
    return f"pc:{{{key}}}:resp"
