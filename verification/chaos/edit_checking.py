"""Edits and rollbacks by hand: what was acked is there, what was refused is not."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from verification.chaos.history import Edited, FinalRevision, Refused, RolledBack
from verification.chaos.model import FoldError, parse_path

#: The field of a memory that edits put their marks into.
FIELD = "edits"


@dataclass(slots=True)
class _Mark:
    """What became of the attempts to make an edit."""

    #: Those that are under way, by client.
    pending: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    #: Those whose outcome is unknown.
    unknown: int = 0
    is_refused: bool = False
    #: Revisions that responses say it made.
    acked: list[int] = field(default_factory=list)
    #: The revisions that it may have been made for; 0: any.
    expected: set[int] = field(default_factory=set)

    def resolve(self, client: str) -> None:
        """Records the answer to one of the client's attempts."""
        self.pending[client] = max(0, self.pending[client] - 1)


class EditChecker:
    """Checks the edits of one memory; `found` takes a promise and what broke it."""

    def __init__(self, found: Callable[[str, str], None]) -> None:
        self._found = found
        self._marks: dict[str, _Mark] = defaultdict(_Mark)
        self._rollbacks: list[RolledBack] = []
        #: Revisions that have each mark.
        self._made: dict[str, list[int]] = defaultdict(list)

    def edited(self, event: Edited) -> None:
        """Records an edit that is about to be made, was made, or has an unknown outcome."""
        mark = self._marks[event.mark]
        mark.expected.add(event.expected_revision)
        if not event.returned:
            mark.pending[event.client] += 1
            return
        mark.resolve(event.client)
        if event.revision:
            mark.acked.append(event.revision)
        else:
            mark.unknown += 1

    def refused(self, event: Refused) -> None:
        """Records that an edit was refused."""
        mark = self._marks[event.mark]
        mark.resolve(event.client)
        mark.is_refused = True

    def rolled_back(self, event: RolledBack) -> None:
        """Records that a rollback was made."""
        if event.revision:
            self._rollbacks.append(event)

    def look(self, one: FinalRevision) -> None:
        """Takes a revision of the memory in."""
        if one.kind != "edit":
            return
        for path, op, _ in one.amendments:
            try:
                tokens = parse_path(path)
            except FoldError:
                continue
            if len(tokens) == 2 and tokens[0] == FIELD and op != "remove":
                self._made[str(tokens[1])].append(one.revision)

    def check_rollback(self, one: FinalRevision) -> None:
        """Checks that what was said of a revision is true."""
        for event in self._rollbacks:
            if event.revision == one.revision:
                self._check_rollback(event, one)

    def _check_rollback(self, event: RolledBack, one: FinalRevision) -> None:
        who = f"{event.client} was told that {one.revision} restored {event.restored_revision}"
        if one.restored_revision != event.restored_revision:
            self._found("rollback", f"{who}; it is a {one.kind} of {one.restored_revision}")
        if event.expected_revision and event.expected_revision != one.revision - 1:
            self._found("edit-next", f"{who}, expecting {event.expected_revision}")

    def finish(self, last_revision: int) -> None:
        """Checks the edits, when all events and revisions were looked at."""
        for event in self._rollbacks:
            if event.revision > last_revision:
                self._found("rollback", f"{event.client} made {event.revision}, which is not there")
        for name, mark in self._marks.items():
            self._check_mark(name, mark, self._made.get(name, []))
        for name in self._made.keys() - self._marks.keys():
            self._found("edit-once", f"nobody made the edit {name} of {self._made[name]}")

    def _check_mark(self, name: str, mark: _Mark, made: list[int]) -> None:
        unknown = mark.unknown + sum(mark.pending.values())
        for revision in mark.acked:
            if revision not in made:
                self._found("edit-kept", f"{name} was to be in {revision}; it is in {made}")
        # An edit may be made once for each try with an unknown outcome.
        if len(made) > len(mark.acked) + unknown:
            promise = "edit-refused" if mark.is_refused and not mark.acked else "edit-once"
            self._found(promise, f"{name} is in {made}; acked was {mark.acked}")
        if 0 not in mark.expected:
            for revision in made:
                if revision - 1 not in mark.expected:
                    what = f"{name}, for revision {sorted(mark.expected)}, made {revision}"
                    self._found("edit-next", what)
