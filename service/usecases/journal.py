"""The gateway's ledger: a reply is on disk before anybody uses it."""

from service.domain.flows import ModelReply
from service.domain.ledger import Call, CallScope
from storage import calls
from storage.database import Database


class Journal:
    """Keeps calls in the database; the gateway's `CallLedger`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_reply(self, scope: CallScope, key: bytes) -> ModelReply | None:
        """The reply that was paid for already; None when there is none."""
        async with self._database.transaction(scope.tenant_id) as tx:
            return await calls.find_reply(tx, scope.session_key, key)

    async def record(self, scope: CallScope, call: Call) -> ModelReply | None:
        """Writes a call; the reply that counts, or None for a failed call.

        When another worker made the same call first, its reply counts.
        """
        async with self._database.transaction(scope.tenant_id) as tx:
            if not await calls.record(tx, scope, call):
                return await calls.find_reply(tx, scope.session_key, call.key)
        return None if call.reply is None else ModelReply(text=call.reply, model=call.model)
