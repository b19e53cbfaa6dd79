"""The revisions of a memory of any kind: a chain without a gap, up to the memory's cursor."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A stored value that does not follow from the log and the amendments."""

    #: What kind of thing differs, in two words with a dot: "chunk.digest".
    name: str
    #: Where: a position, a revision, a node …
    place: str
    #: In a sentence without a full stop.
    said: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RevisionRow:
    """A revision as it is stored."""

    revision: int
    parent_revision: int | None
    from_position: int
    to_position: int
    #: One of `revision_kind` in storage/tables/memories.py.
    kind: str
    #: SHA-256 of what it made.
    digest: bytes
    #: The revision that a rollback restores, or a quarantine that goes back.
    restored_revision: int | None
    #: The revisions that a quarantine undoes; the positions that it, or a release, reads again.
    undone: Sequence[int] | None = None
    read_positions: Sequence[int] | None = None
    #: A quarantine went back to before it.
    set_aside: bool = False
    #: Its state has expired, and some of its amendments with it.
    expired: bool = False

    def differs(self, name: str, said: str) -> Difference:
        """Returns a difference at this revision."""
        return Difference(name=name, place=f"revision {self.revision}", said=said)


class ChainCheck:
    """Checks every revision in order, then the memory's row."""

    def __init__(self) -> None:
        self._last: RevisionRow | None = None

    def revision(self, row: RevisionRow) -> Iterator[Difference]:
        """Checks the next revision."""
        before, self._last = self._last, row
        expected = 0 if before is None else before.revision + 1
        if row.revision != expected:
            said = f"it follows revision {expected - 1}: {row.revision - expected} are missing"
            yield row.differs("revision.missing", said)
            return
        begun = 0 if before is None else before.to_position
        goes_back = row.to_position < row.from_position and row.kind != "quarantine"
        if row.from_position != begun or goes_back:
            said = f"it begins at position {row.from_position}, and the one before ended at {begun}"
            yield row.differs("revision.chain", said)
        if row.parent_revision != (None if before is None else before.revision):
            said = f"its parent is {row.parent_revision}"
            yield row.differs("revision.parent", said)
        if (row.kind == "create") is not (before is None):
            said = f"its kind is {row.kind}"
            yield row.differs("revision.kind", said)

    def finish(
        self, revision: int, applied_position: int, *, head: int, status: str, has_open_letter: bool
    ) -> Iterator[Difference]:
        """Checks what the memory's row says, with the session's head at the same moment.

        `has_open_letter`: a dead letter says why it is stalled.
        """
        last = self._last
        reached = (-1, 0) if last is None else (last.revision, last.to_position)
        if reached != (revision, applied_position):
            said = (
                f"the memory is at revision {revision}, position {applied_position};"
                f" its revisions end at {reached[0]}, position {reached[1]}"
            )
            yield Difference(name="memory.cursor", place="memory", said=said)
        if reached[1] > head:
            said = f"it has applied position {reached[1]}, and the log's head is {head}"
            yield Difference(name="memory.ahead", place="memory", said=said)
        if (status == "stalled") is not has_open_letter:
            said = f"it is {status}, and "
            said += "a dead letter is open" if has_open_letter else "no dead letter is open"
            yield Difference(name="memory.status", place="memory", said=said)
        if (status == "sealed") is not (last is not None and last.kind == "seal"):
            said = f"it is {status}, and its last revision is a {last.kind if last else '-'}"
            yield Difference(name="memory.status", place="memory", said=said)
