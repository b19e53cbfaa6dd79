"""The same client without `await`, for programs that have no event loop.

    with palimpsest.sync.connect() as client:
        session = client.create_session("user-42", exist_ok=True)
        session.append("The harbour museum is closed on Mondays.")

Values and errors are the same classes as in `palimpsest`.
"""

from palimpsest import _exports
from palimpsest._exports import *  # noqa: F403 - it has names that are exported only
from palimpsest._sync._access import Access
from palimpsest._sync._agent import Agent
from palimpsest._sync._client import Client, connect
from palimpsest._sync._history import Provenance, Watch
from palimpsest._sync._kinds import State, Tree
from palimpsest._sync._listening import AnswerStream
from palimpsest._sync._memory import Memory
from palimpsest._sync._operation import Operation
from palimpsest._sync._producer import Producer
from palimpsest._sync._session import Session

__all__ = [
    "Access",
    "Agent",
    "AnswerStream",
    "Client",
    "Memory",
    "Operation",
    "Producer",
    "Provenance",
    "Session",
    "State",
    "Tree",
    "Watch",
    "connect",
]
__all__ += _exports.__all__
