"""Replies of models that come in pieces of any size."""

import json

import pytest

from service.proxy.conversation import CHAT
from service.proxy.replies import ReplyReader

WORDS = ("one ", "two\n", "three", "ü" * 50)
EVENTS = [{"choices": [{"delta": {"content": one}}]} for one in WORDS]
REPLY = b"".join(f"data: {json.dumps(one)}\r\n\r\n".encode() for one in EVENTS) + b"data: [DONE]"


@pytest.mark.parametrize("size", [1, 2, 7, 64, len(REPLY)])
def test_lines_are_read_however_they_are_cut(size: int) -> None:
    reader = ReplyReader(CHAT, streamed=True)
    for at in range(0, len(REPLY), size):
        reader.feed(REPLY[at : at + size])
    reader.close()
    assert reader.reply.text == "".join(WORDS)
    assert reader.reply.is_complete
