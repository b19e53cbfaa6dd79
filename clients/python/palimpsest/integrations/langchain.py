"""LangChain: the history of a chat (`pip install palimpsest-sdk[langchain]`)."""

from collections.abc import Sequence

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)

from palimpsest.integrations._transcripts import Said, Transcript
from palimpsest.sync import Session

_ROLES = {"human": "user", "ai": "assistant"}


class PalimpsestChatMessageHistory(BaseChatMessageHistory):
    """Keeps the messages of a conversation in a thread of a session.

        chain = RunnableWithMessageHistory(
            model, lambda thread: PalimpsestChatMessageHistory(client.session("alice"), thread)
        )

    Messages come back as they were, and the session's memories read what they say; `recall` of the
    session finds it in other conversations. `clear` removes the thread for good.
    """

    def __init__(self, session: Session, thread: str, *, source: str = "langchain") -> None:
        """`session` is what the memory is about, such as a user; `thread` the conversation."""
        self._transcript = Transcript(session, thread, source)

    @property
    def messages(self) -> list[BaseMessage]:
        """The messages of the thread, oldest first."""
        stored = [one.item for one in self._transcript.items()]
        messages: list[BaseMessage] = messages_from_dict(stored)
        return messages

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Stores messages, durably."""
        self._transcript.add((message_to_dict(one), _said(one)) for one in messages)

    def clear(self) -> None:
        """Removes the thread, and what memories derived from it."""
        self._transcript.clear("the history was cleared")


def _said(message: BaseMessage) -> Said:
    text = str(message.text)
    if isinstance(message, ToolMessage):
        return Said(role="tool", observation=text or "(nothing)")
    if isinstance(message, AIMessage) and message.tool_calls:
        calls = "; ".join(f"{one['name']}({one['args']})" for one in message.tool_calls)
        return Said(role="assistant", text=text, action=calls)
    return Said(role=_ROLES.get(message.type, message.type), text=text)
