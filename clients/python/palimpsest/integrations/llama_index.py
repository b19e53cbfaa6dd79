"""LlamaIndex: a block of its memory (`pip install palimpsest-sdk[llama-index]`)."""

import asyncio
from functools import partial
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemoryBlock

from palimpsest._values_log import ChunkLabels
from palimpsest.sync import Session


class PalimpsestMemoryBlock(BaseMemoryBlock[str]):
    """Recalls from a session what fits the conversation, and remembers what leaves it.

        block = PalimpsestMemoryBlock(name="long_term", session=client.session("alice"))
        memory = Memory.from_defaults(session_id="c1", memory_blocks=[block])

    LlamaIndex gives a block the messages that leave its short-term memory, and puts what the block
    recalls before the others.
    """

    session: Session
    tokens: int = 1000

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        asked = [one for one in messages or () if one.role == MessageRole.USER and one.content]
        query = str(asked[-1].content) if asked else ""
        return str(await asyncio.to_thread(self.session.recall, query, tokens=self.tokens))

    async def _aput(self, messages: list[ChatMessage]) -> None:
        said = [{"role": one.role.value, "content": one.content} for one in messages if one.content]
        threads = {str(one.additional_kwargs.get("session_id") or "") for one in messages}
        labels = ChunkLabels()
        if len(threads) == 1 and "" not in threads:
            labels["thread"] = threads.pop()
        if said:
            await asyncio.to_thread(partial(self.session.remember, said, **labels))
