"""Keeps out of imports what was erased after the export.

The record of an erasure lists the exports from before it. So the import of a deleted session is
refused unless its client wants that, and what was redacted becomes tombstones again: in the
transaction that shows the session, which has the positions of the exported one.
"""

from collections.abc import Sequence
from functools import partial
from uuid import UUID, uuid4

from service.domain.log.erasures import Erasure, ErasureKind, ErasureRequest
from service.domain.log.redactions import keyed_digest
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.usecases.operations.chunk_redaction import redact_chunks
from storage.engine.database import Transaction
from storage.log import erasures
from storage.operations import exports


class LaterErasures:
    """What was erased of an exported session after its export, in the tenant of an import."""

    def __init__(self, export_id: UUID, token_key: bytes, restore_deleted: bool) -> None:
        self._export_id = export_id
        self._token_key = token_key
        self._restore_deleted = restore_deleted

    async def read(self, tx: Transaction) -> Sequence[Erasure]:
        """Returns the redactions that came after the export.

        Raises InvalidInput where the session was deleted, or not all of them are known.
        """
        found = await erasures.list_since_export(tx, self._export_id)
        deletion = next((one for one in found if one.kind is ErasureKind.SESSION), None)
        if deletion is not None and not self._restore_deleted:
            raise _invalid(
                f"the session was deleted at {deletion.requested_at:%Y-%m-%d %H:%M} UTC, after this"
                f" export (erasure {deletion.erasure_id}): set restore_deleted to import it all"
                " the same"
            )
        redactions = [one for one in found if one.kind is ErasureKind.CHUNKS]
        session, count = await exports.redacted_since(tx, self._export_id)
        if count > len(redactions):
            # Retention has no record with positions, and a record lists the newest exports.
            raise _invalid(
                f"chunks of session {session!r} were redacted since this export: export it again"
            )
        return redactions

    async def redact(self, tx: Transaction, key: UUID, redactions: Sequence[Erasure]) -> None:
        """Redacts in the imported session what these redacted, as one redaction."""
        if not redactions:
            return
        newest = redactions[-1]
        # A session that is there has its own, of which some were let in again.
        session, _ = await exports.redacted_since(tx, self._export_id)
        positions = {at for one in redactions for at in one.detail.get("positions", ())}
        rules = {
            (words, bytes.fromhex(digest))
            for one in ([] if session else redactions)
            for words, digest in one.detail.get("keep_out", ())
        }
        await redact_chunks(
            tx,
            key,
            uuid4(),
            sorted(positions),
            partial(keyed_digest, self._token_key, tx.tenant_id),
            ErasureRequest(principal=newest.principal, reason=newest.reason),
            sorted(rules),
        )


def _invalid(said: str) -> InvalidInput:
    return InvalidInput(Reason.IMPORT_INVALID, f"line 1: {said}", {"line": 1}, field="data")
