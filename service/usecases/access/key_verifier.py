"""Verifies keys, and notes when they are used."""

import asyncio
import hmac
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

import structlog

from service.domain.access.audit import timestamp
from service.domain.access.credentials import Credentials, is_key, parsed_key
from service.domain.access.identity import Identity
from service.domain.values.errors import PermissionDenied, Unauthenticated
from service.domain.values.reasons import Reason
from service.usecases.access.lookups import CachedLookups
from storage.access import keys
from storage.access.keys import VerifiableKey
from storage.engine.database import Database
from storage.engine.errors import StorageError

_log = structlog.get_logger("palimpsest.access")

#: How often it is stored which keys were used.
NOTE_SECONDS = 60.0


class KeyVerifier:
    """Verifies the keys of all tenants, in one server process.

    What the database says of a key is trusted for `seconds`: so long a revoked key, or one of a
    suspended tenant, may still be accepted.
    """

    def __init__(self, database: Database, *, seconds: float) -> None:
        self._database = database
        self._lookups = CachedLookups(self._load, seconds=seconds)
        #: Tenant and time of the newest use, of keys used since that was stored.
        self._used: dict[str, tuple[UUID, datetime]] = {}

    async def verify(self, credentials: Credentials) -> Identity | None:
        """Returns the identity of a key; None for credentials of another kind.

        Raises Unauthenticated, PermissionDenied (suspended), Exhausted, StorageError.
        """
        if not is_key(credentials.token):
            return None
        sent = parsed_key(credentials.token)
        if sent is None:
            raise Unauthenticated(
                Reason.CREDENTIALS_INVALID,
                "the key was cut or mistyped: send all of it, from pk_ on",
                {"cause": "malformed"},
            )
        known = await self._lookups.find(sent.key_id)
        if known is None or not hmac.compare_digest(known.secret_hash, sent.hash):
            raise Unauthenticated(
                Reason.CREDENTIALS_INVALID,
                "there is no such key: use another one",
                {"cause": "unknown"},
            )
        now = datetime.now(UTC)
        _check(known, now)
        self._used[sent.key_id] = (known.tenant_id, now)
        return Identity(
            tenant_id=known.tenant_id,
            principal=f"key:{sent.key_id}",
            scopes=known.scopes,
            session_prefix=known.session_prefix,
        )

    def forget(self) -> None:
        """Reads keys and tenants anew: this process has changed some."""
        self._lookups.forget()

    async def run(self) -> None:
        """Stores once a minute which keys were used, until cancelled; then once more."""
        try:
            while True:
                await asyncio.sleep(NOTE_SECONDS)
                await self.note_used()
        finally:
            await self.note_used()

    async def note_used(self) -> None:
        """Stores which keys were used since the last time."""
        used, self._used = self._used, {}
        if not used:
            return
        try:
            tenant_id, _ = next(iter(used.values()))
            async with self._database.transaction(tenant_id, name="keys-used") as tx:
                await keys.note_used(tx, used)
        except StorageError as error:
            # The next use is stored instead.
            _log.warning("cannot store which keys were used", cause=str(error))

    async def _load(self, ids: Sequence[str]) -> Mapping[str, VerifiableKey]:
        async with self._database.sweeping(name="keys") as tx:
            return await keys.verifiable(tx, ids)


def _check(known: VerifiableKey, now: datetime) -> None:
    """Refuses a key that is not valid any more; only a client that has the secret learns why."""
    if known.is_revoked:
        raise Unauthenticated(
            Reason.CREDENTIALS_INVALID,
            "the key was revoked: use another one",
            {"cause": "revoked"},
        )
    if known.expires_at is not None and known.expires_at <= now:
        expired_at = timestamp(known.expires_at)
        raise Unauthenticated(
            Reason.CREDENTIALS_EXPIRED,
            f"the key expired at {expired_at}: use another one",
            {"expired_at": expired_at},
        )
    if known.is_tenant_suspended:
        raise suspended()


def suspended() -> PermissionDenied:
    """Returns the error of calls of a suspended tenant."""
    return PermissionDenied(
        Reason.TENANT_SUSPENDED,
        "the tenant is suspended, its data is kept: ask the operator to resume it",
    )
