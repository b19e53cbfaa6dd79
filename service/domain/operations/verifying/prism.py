"""A PRISM memory: its amendments, applied one after the other, against all that is stored."""

import hashlib
import json
from collections.abc import Iterator, Sequence

from service.domain.operations.verifying.chain import Difference, RevisionRow
from service.domain.prism.amending import copied, replay
from service.domain.prism.amendments import Amendment
from service.domain.prism.memory import PrismMemory
from service.domain.prism.schemas.tree import Mismatch, Schema
from service.domain.values.json_values import Json, canonical, restore

#: The amendments of a revision, with their ordinals; None for one that cannot be read.
NumberedAmendments = Sequence[tuple[int, Amendment | None]]


class PrismCheck:
    """Checks every revision in order, then the newest value.

    Reports a difference once. Then it compares nothing until a base or a snapshot has the
    digest of its revision, and continues from there.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._value: Json = None
        self._is_lost = True
        #: Whether the revision before has expired.
        self._is_thinned = False
        #: Amendments since the newest base or snapshot.
        self._unsaved = 0

    def revision(
        self,
        row: RevisionRow,
        amendments: NumberedAmendments,
        *,
        base: str | None,
        snapshot: str | None,
        restored: Json,
    ) -> Iterator[Difference]:
        """Checks the next revision, with the canonical JSON that was saved with it, if any.

        `restored`: the state that a rollback restores; None when that cannot be read.
        """
        if row.expired:
            self._skip(row, amendments)
            return
        rests_on_base = row.undone is not None or self._is_thinned
        self._is_thinned = False
        if row.revision == 0:
            self._value = restore(PrismMemory.create(self._schema).value_json)
            self._is_lost = False
        elif rests_on_base and base is not None:
            # Amendments without some of them; the digest is that of what was made of them.
            self._value, self._is_lost = restore(base), False
            yield from self._compare(row, base, snapshot)
            return
        elif row.kind == "rollback":
            self._value, self._is_lost = copied(restored), restored is None
            if restored is None:
                said = f"the state of revision {row.restored_revision} cannot be read"
                yield row.differs("prism.rollback", said)
        yield from self._amend(row, amendments)
        yield from self._compare(row, base, snapshot)

    def _skip(self, row: RevisionRow, amendments: NumberedAmendments) -> None:
        """Applies what is left of a revision whose state has expired."""
        self._is_thinned = True
        numbered = [(number, one) for number, (_, one) in enumerate(amendments, start=1)]
        # What does not fit is in the next state that is kept.
        list(self._amend(row, numbered))

    def _amend(self, row: RevisionRow, amendments: NumberedAmendments) -> Iterator[Difference]:
        self._unsaved += len(amendments)
        ordinals = [ordinal for ordinal, _ in amendments]
        if ordinals != list(range(1, len(ordinals) + 1)):
            yield row.differs("prism.amendment", f"its amendments are numbers {ordinals}")
            self._is_lost = True
            return
        for ordinal, amendment in amendments:
            if self._is_lost:
                return
            try:
                if amendment is None:
                    raise Mismatch("it is no amendment")
                self._value = replay(self._schema, self._value, (amendment,))
            except Mismatch as error:
                said = f"amendment {ordinal} does not apply: {error}"
                yield row.differs("prism.amendment", said)
                self._is_lost = True

    def _compare(
        self, row: RevisionRow, base: str | None, snapshot: str | None
    ) -> Iterator[Difference]:
        text = "" if self._is_lost else canonical(self._value)
        if row.kind == "fold" and base is not None and not self._is_lost:
            # A fold may put keys into another order.
            text = self._reordered(base, text)
        if not self._is_lost and _sha(text) != row.digest:
            said = "the amendments give another state than its digest says"
            yield row.differs("prism.digest", said)
            self._is_lost = True
        for name, saved in (("prism.base", base), ("prism.snapshot", snapshot)):
            if saved is None:
                continue
            self._unsaved = 0
            if _sha(saved) != row.digest:
                yield row.differs(name, "what was saved is not the state of its revision")
            elif self._is_lost:
                self._value, self._is_lost = restore(saved), False

    def _reordered(self, base: str, text: str) -> str:
        """Returns the base, if it is the same state with its keys in another order."""
        try:
            value = restore(base)
        except ValueError:
            return text
        if _sorted(value) != _sorted(self._value):
            return text
        self._value = value
        return base

    def finish(
        self, *, revision: int, stored_revision: int, value: str, unsaved: int
    ) -> Iterator[Difference]:
        """Checks the memory's revision, and the row with its newest value."""
        place = "newest value"
        if stored_revision != revision:
            said = f"it is of revision {stored_revision}, and the memory is at {revision}"
            yield Difference(name="prism.value", place=place, said=said)
        elif not self._is_lost and value != canonical(self._value):
            said = "it is not the state that the amendments give"
            yield Difference(name="prism.value", place=place, said=said)
        if unsaved != self._unsaved:
            said = f"it counts {unsaved} amendments since the last saved state, not {self._unsaved}"
            yield Difference(name="prism.unsaved", place=place, said=said)


def _sorted(value: Json) -> str:
    """Returns the same text for values that differ in the order of keys alone."""
    return json.dumps(value, sort_keys=True)


def _sha(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
