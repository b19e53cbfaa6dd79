"""Copies of replies in Redis: quicker to find than the durable row, and never instead of it."""

import json
import zlib

import structlog

from service.domain.flows import ModelReply
from storage.redis_link import Command

_log = structlog.get_logger("palimpsest.prefix_cache")

#: How long a copy is kept.
COPY_SECONDS = 24 * 3600
#: A longer text is not unpacked: what is there was not written by us.
MAX_TEXT_BYTES = 16 * 1024 * 1024


def read(key: str) -> Command:
    """Asks for a copy; `key` is the tenant and the call's key."""
    name = _name(key)
    return Command(name, ("GET", name))


def write(key: str, reply: ModelReply) -> Command:
    """Keeps a copy."""
    name = _name(key)
    packed = zlib.compress(json.dumps([reply.text, reply.model]).encode(), level=1)
    return Command(name, ("SET", name, packed, "EX", COPY_SECONDS))


def decode(value: bytes | None) -> ModelReply | None:
    """The copy; None when there is none, or it is not one of ours."""
    if value is None:
        return None
    try:
        unpacked = zlib.decompressobj().decompress(value, MAX_TEXT_BYTES)
        text, model = json.loads(unpacked)
    except (zlib.error, ValueError, TypeError):
        _log.warning("a copy of a reply in redis cannot be read; the durable one serves")
        return None
    if not isinstance(text, str) or not isinstance(model, str):
        return None
    return ModelReply(text=text, model=model)


def _name(key: str) -> str:
    return f"pc:{{{key}}}:resp"
