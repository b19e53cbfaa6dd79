"""What tests of the tools for models share."""

import asyncio
from typing import Any

from mcp.client.session import MessageHandlerFnT
from mcp_types import CallToolResult, TextContent

#: Modes of the official client: the versions with and without a handshake.
LEGACY, MODERN = "legacy", "2026-07-28"
#: The client warns of methods that the newer version does not have any more.
REMOVED = "ignore::mcp.shared.exceptions.MCPDeprecationWarning"


def text_of(result: CallToolResult) -> str:
    """Returns the text of a call that succeeded."""
    text = _text(result)
    assert not result.is_error, text
    return text


def failed(result: CallToolResult) -> str:
    """Returns the text of a call that failed."""
    text = _text(result)
    assert result.is_error, text
    return text


def _text(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def into(seen: asyncio.Queue[Any]) -> MessageHandlerFnT:
    """Returns a client's handler of messages, which keeps them."""

    async def handler(message: Any) -> None:
        await seen.put(message)

    return handler
