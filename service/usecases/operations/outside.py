"""What an erasure does not reach: exports made before, and sessions imported from them."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from storage.engine.database import Transaction
from storage.operations import copies
from storage.operations.exports import exports_of

#: Exports, and imports, that a receipt lists; of earlier ones it has the number.
MAX_LISTED = 100


async def left_outside(tx: Transaction, session_key: UUID) -> Mapping[str, Any]:
    """Returns a session's exports and their imports, which the receipt of its erasure lists."""
    found = await exports_of(tx, session_key)
    if not found:
        return {}
    exports = [
        {"export": str(one.export_id), "begun_at": one.created_at.isoformat(), "head": one.head}
        for one in found[-MAX_LISTED:]
    ]
    detail: dict[str, Any] = {"exports": exports, "exports_before": len(found) - len(exports)}
    imported, count = await copies.find(tx, [one.export_id for one in found], MAX_LISTED)
    if imported:
        # By ids: a record of an erasure has no names.
        imports = [
            {"session": str(one.session_key), "export": str(one.export_id)} for one in imported
        ]
        detail |= {"imports": imports[::-1], "imports_before": count - len(imports)}
    return detail
