"""The gateway's ledger: an intent is on disk before a call, its reply before anybody uses it."""

import asyncio

import structlog

from service.domain.flows import ModelReply
from service.domain.ledger import Busy, Call, CallScope, Lease, Reservation
from service.usecases.call_meters import CallMeters
from storage import budgets, calls, intents
from storage.database import Database
from storage.errors import Busy as DatabaseBusy
from storage.errors import Unreachable

_log = structlog.get_logger("palimpsest.journal")

#: How long it is tried to store a reply: it is paid for.
STORE_SECONDS = 120.0
#: Pause between two tries.
STORE_PAUSE_SECONDS = 0.5


class Journal:
    """Keeps calls in the database; the gateway's `CallLedger`."""

    def __init__(self, database: Database, *, lease_seconds: float) -> None:
        self._database = database
        self._lease_seconds = lease_seconds
        self._meters = CallMeters()

    async def begin(
        self, scope: CallScope, key: bytes, wanted: Reservation
    ) -> ModelReply | Busy | Lease:
        """The reply that was paid for already, else the right to make the call, if it is free.

        Raises BudgetExhausted for a call that a budget does not allow.
        """
        async with self._database.transaction(scope.tenant_id) as tx:
            begun = await intents.begin(tx, scope, key, wanted, self._lease_seconds)
            if isinstance(begun, Lease):
                # Behind the intent's row, so that all lock in the same order.
                await budgets.check(
                    tx, scope, tokens=wanted.tokens, micro_usd=wanted.micro_usd, key=key
                )
            return begun

    async def renew(self, scope: CallScope, key: bytes, lease: Lease) -> bool:
        """Lets the lease hold from now on; False when somebody else has taken it."""
        async with self._database.transaction(scope.tenant_id) as tx:
            return await intents.renew(tx, scope, key, lease, self._lease_seconds)

    async def record(
        self, scope: CallScope, call: Call, lease: Lease, *, last: bool
    ) -> ModelReply | None:
        """Writes a call; the reply that counts, or None for a failed call.

        With a reply, or the `last` try, the intent ends. When somebody else made the same
        call first, that reply counts.
        """
        until = asyncio.get_running_loop().time() + STORE_SECONDS
        while True:
            try:
                return await self._record(scope, call, lease, last=last)
            except (Unreachable, DatabaseBusy) as error:
                # Twice written is once written, for a reply; a failed call may be lost.
                if call.reply is None or asyncio.get_running_loop().time() > until:
                    raise
                _log.warning("a reply waits for the database", cause=str(error))
            await asyncio.sleep(STORE_PAUSE_SECONDS)

    async def _record(
        self, scope: CallScope, call: Call, lease: Lease, *, last: bool
    ) -> ModelReply | None:
        async with self._database.transaction(scope.tenant_id) as tx:
            written = await calls.record(tx, scope, call)
            if call.reply is not None or last:
                await intents.end(tx, scope, call.key, lease)
            if not written:
                return await calls.find_reply(tx, scope.session_key, call.key)
        self._meters.count(call)
        return call.as_reply()
