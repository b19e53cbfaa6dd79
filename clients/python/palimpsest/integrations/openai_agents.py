"""OpenAI's Agents SDK: a session (`pip install palimpsest-sdk[openai-agents]`)."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from agents.items import TResponseInputItem
from agents.memory import SessionABC, SessionSettings

from palimpsest.integrations._transcripts import Said, Transcript
from palimpsest.sync import Session


class PalimpsestSession(SessionABC):
    """Keeps the items of a conversation in a thread of a session.

        session = PalimpsestSession("conversation-7", client.session("alice"))
        await Runner.run(agent, "What may I eat?", session=session)

    Items come back as they were, and the session's memories read what they say; its `recall` finds
    it in other conversations. `pop_item` and `clear_session` remove content for good.
    """

    def __init__(
        self,
        session_id: str,
        session: Session,
        *,
        source: str = "agent",
        session_settings: SessionSettings | None = None,
    ) -> None:
        """`session` is what the memory is about, such as a user; `session_id` its thread."""
        self.session_id = session_id
        self.session_settings = session_settings or SessionSettings()
        self._transcript = Transcript(session, session_id, source)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Returns the newest `limit` items, or all, oldest first."""
        if limit is None:
            limit = self.session_settings.limit if self.session_settings else None
        found = await asyncio.to_thread(self._transcript.items)
        items: list[TResponseInputItem] = [one.item for one in found]
        if limit is None:
            return items
        return items[-limit:] if limit > 0 else []

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Stores items, durably."""
        pairs = [(item, _said(item)) for item in items]
        await asyncio.to_thread(self._transcript.add, pairs)

    async def pop_item(self) -> TResponseInputItem | None:
        """Removes the newest item for good, and returns it."""
        found = await asyncio.to_thread(self._transcript.items)
        if not found:
            return None
        await asyncio.to_thread(self._transcript.remove, found[-1:], "the item was popped")
        item: TResponseInputItem = found[-1].item
        return item

    async def clear_session(self) -> None:
        """Removes the thread, and what memories derived from it."""
        await asyncio.to_thread(self._transcript.clear, "the session was cleared")


def _said(item: Any) -> Said:
    kind = item.get("type", "message") if isinstance(item, Mapping) else ""
    if kind == "message":
        return Said(role=str(item.get("role", "user")), text=_text(item.get("content")))
    if kind.endswith("_call_output"):
        return Said(role="tool", observation=_text(item.get("output")) or "(nothing)")
    if kind.endswith("_call"):
        arguments = item.get("arguments") or item.get("action") or ""
        named = item.get("name", kind)
        return Said(role="assistant", action=f"{named}({_text(arguments)})")
    return Said(role="system", text=f"({kind or 'item'})")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [one.get("text", "") for one in content if isinstance(one, Mapping)]
        return "\n".join(str(part) for part in parts if part)
    return "" if content is None else json.dumps(content, ensure_ascii=False, default=str)
