"""Copies of replies: with their counts, and as the release before wrote them."""

import json
import zlib

from service.domain.flows import ModelReply
from storage.reply_copies import ReplyCopies

REPLY = ModelReply(text="said", model="m/x", input_tokens=7, cached_tokens=None, output_tokens=3)


def written(copies: ReplyCopies) -> bytes:
    (command,) = copies.write("t:key", REPLY)
    value = command.arguments[2]
    assert isinstance(value, bytes)
    return value


def test_a_copy_has_the_counts_of_its_reply() -> None:
    copies = ReplyCopies(b"secret")
    assert copies.decode("t:key", written(copies)) == REPLY


def test_a_copy_of_the_release_before_is_read_without_counts() -> None:
    copies = ReplyCopies(b"secret")
    name = copies.read("t:key").key
    packed = zlib.compress(json.dumps(["said", "m/x"]).encode(), level=1)
    copy = copies._mac(name, packed) + packed
    assert copies.decode("t:key", copy) == ModelReply(text="said", model="m/x")


def test_the_release_before_reads_our_copies() -> None:
    # Sixteen bytes of a keyed hash, and then what it decompressed.
    packed = written(ReplyCopies(b"secret"))[16:]
    assert json.loads(zlib.decompress(packed)) == ["said", "m/x"]
