"""Where the calls of a tool go: fixed by the URL and the key, and by no argument of a model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mcp.server.context import ServerRequestContext

import palimpsest

#: The source of what a tool remembers, which keeps it apart from other sources: a tenant
#: may call it unverified, or forget all of it.
SOURCE = "mcp"


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolScope:
    """The part of a tenant's data that the tools of a client work on."""

    #: By a connection that has the client's credentials.
    session: palimpsest.Session
    #: What is remembered belongs to it, and only that is forgotten; empty: to none, and all.
    thread: str = ""


Context = ServerRequestContext[Any, Any]
#: Returns the scope of a request.
ScopeOf = Callable[[Context], ToolScope]
