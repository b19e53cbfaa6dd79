"""Copies of replies: with their counts, and as the release before wrote them."""

import json
import zlib
from dataclasses import replace

import pytest

from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelReply
from storage.calls.reply_copies import ReplyCopies

REPLY = ModelReply(text="said", model="m/x", input_tokens=7, cached_tokens=None, output_tokens=3)


def written(copies: ReplyCopies) -> bytes:
    (command,) = copies.write("t:key", REPLY)
    value = command.arguments[2]
    assert isinstance(value, bytes)
    return value


def test_a_copy_has_the_counts_of_its_reply() -> None:
    copies = ReplyCopies(b"secret")
    assert copies.decode("t:key", written(copies)) == REPLY


@pytest.mark.parametrize(
    ("text", "said", "end"),
    [("said", "said", End.COMPLETE), ("cut\n[CUT OFF]", "cut", End.LENGTH)],
)
def test_a_copy_of_the_release_before_has_no_counts_and_may_have_been_cut_off(
    text: str, said: str, end: End
) -> None:
    copies = ReplyCopies(b"secret")
    name = copies.read("t:key").key
    packed = zlib.compress(json.dumps([text, "m/x"]).encode(), level=1)
    copy = copies._mac(name, packed) + packed
    assert copies.decode("t:key", copy) == ModelReply(text=said, model="m/x", end=end)


@pytest.mark.parametrize(
    "reply",
    [replace(REPLY, end=End.LENGTH), replace(REPLY, text="said\n[CUT OFF]")],
)
def test_what_a_copy_would_misread_is_not_copied(reply: ModelReply) -> None:
    assert ReplyCopies(b"secret").write("t:key", reply) == []


def test_the_release_before_reads_our_copies() -> None:
    # Sixteen bytes of a keyed hash, and then what it decompressed.
    packed = written(ReplyCopies(b"secret"))[16:]
    assert json.loads(zlib.decompress(packed)) == ["said", "m/x"]
