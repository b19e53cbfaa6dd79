"""Binds page tokens to the session and the memory that they were issued for.

Both may be deleted, and made anew under their names: then positions and revisions in an old token
are those of something else, and it is refused.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from service.domain.values.tenancy import memory_id, session_key
from service.rpc.interceptors.base import Around, Context, subject_of
from service.rpc.interceptors.tenancy import current_tenant
from storage.engine.database import Database
from storage.log import sessions

_current: ContextVar[str] = ContextVar("lives", default="")

#: Fields for tokens; a request that has pages has one of them.
_TOKENS = ("page_token", "resume_token")


def current_lives() -> str:
    """Returns what distinguishes session and memories of the call from earlier ones of their names.

    Empty where there were none.
    """
    return _current.get()


class Lives(Around):
    """Looks up the session, and the memories, that a call with pages names."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        """Sets `current_lives`. Raises StorageError."""
        about = subject_of(request)
        if not about.session or not any(hasattr(request, name) for name in _TOKENS):
            yield
            return
        tenant_id = current_tenant()
        key = session_key(tenant_id, about.session)
        # DiffMemories is about two.
        names = dict.fromkeys((about.memory, getattr(request, "other_memory", "") or about.memory))
        async with self._database.direct(tenant_id, name="pages") as tx:
            found = [await sessions.lives(tx, key, memory_id(key, name)) for name in names]
        # Tokens of what was never deleted look as in the release before.
        parts = [f"@{incarnation}.{epoch}" for incarnation, epoch in found]
        is_first = all(incarnation == 1 and not epoch for incarnation, epoch in found)
        _current.set("" if is_first else "".join(parts))
        yield
