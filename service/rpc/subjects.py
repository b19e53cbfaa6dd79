"""What a request is about: a session, and perhaps one of its memories."""

from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The ids in a request; empty where it has none."""

    session: str = ""
    memory: str = ""


def subject_of(request: Any) -> Subject:
    """Returns what a request names, itself or in the resource that it creates or changes."""
    session, memory = getattr(request, "session", ""), getattr(request, "memory", "")
    if isinstance(session, Message):
        # The Session of CreateSession and UpdateSession.
        return Subject(session=getattr(session, "id", ""))
    if isinstance(memory, Message):
        # The Memory of CreateMemory and UpdateMemory.
        return Subject(session=getattr(memory, "session", ""), memory=getattr(memory, "id", ""))
    budget = getattr(request, "budget", None)
    return Subject(session=session, memory=memory) if budget is None else subject_of(budget)
