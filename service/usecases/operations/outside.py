"""What lies outside of the service's reach when something is erased: exports made before."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from storage.engine.database import Transaction
from storage.operations.exports import exports_of

#: Exports that a receipt lists; of earlier ones it has the number.
MAX_EXPORTS = 100


async def exports_made(tx: Transaction, session_key: UUID) -> Mapping[str, Any]:
    """Returns the exports of a session, which the receipt of its erasure lists."""
    found = await exports_of(tx, session_key)
    if not found:
        return {}
    listed = [
        {"export": str(one.export_id), "begun_at": one.created_at.isoformat(), "head": one.head}
        for one in found[-MAX_EXPORTS:]
    ]
    return {"exports": listed, "exports_before": len(found) - len(listed)}
