"""Checks the final state of a memory against what its clients saw of it."""

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Container

from verification.chaos import workload
from verification.chaos.edit_checking import EditChecker
from verification.chaos.history import (
    Edited,
    FinalMemory,
    FinalRevision,
    ReadMemory,
    Refused,
    RolledBack,
    Watched,
)
from verification.chaos.model import (
    READING,
    Chain,
    FoldError,
    Log,
    Snapshot,
    Value,
    canonical,
    parse_path,
)
from verification.chaos.promises import Findings
from verification.chaos.shape_checking import check_nodes, check_vectors

#: Bytes of values that are made and hashed for one memory at most. Those after it are
#: compared only where the history has the whole value.
HASHED_BYTES = 500_000_000


class MemoryChecker:
    """Checks one memory."""

    def __init__(self, session: str, memory: FinalMemory, log: Log, findings: Findings) -> None:
        self._where = f"{session}/{memory.name}"
        self._memory = memory
        self._log = log
        self._findings = findings
        self._edits = EditChecker(self._found)
        #: Position that each revision has applied, from 0 on.
        self._ends = array("q")
        #: Revisions that rollbacks restored, with how often.
        self._restored: Counter[int] = Counter()
        #: Digests of what clients read, by revision.
        self._digests: dict[int, str] = {}
        #: What each client saw last: revision and position.
        self._seen: dict[str, tuple[int, int]] = {}
        self._hashed = 0
        self._check_chain()

    def _found(self, promise: str, what: str) -> None:
        self._findings.add(promise, f"{self._where}: {what}")

    def _check_chain(self) -> None:
        chain, epoch = Chain(), 0
        for one in self._memory.revisions:
            wrong = chain.commit(
                revision=one.revision,
                parent=one.parent,
                begin=one.from_position,
                end=one.to_position,
                kind=one.kind,
            )
            for promise, what in wrong:
                self._found(promise, what)
            if one.epoch < epoch:
                self._found("epochs", f"{one.revision} has epoch {one.epoch} behind {epoch}")
            epoch = max(epoch, one.epoch)
            if one.restored_revision is not None:
                self._restored[one.restored_revision] += 1
            self._ends.append(one.to_position)
        self._findings.count("revisions", len(self._ends))
        stands = self._memory.revision, self._memory.applied_position
        if stands != (chain.revision, chain.cursor):
            self._found("cursor", f"stands at {stands}, not {chain.revision, chain.cursor}")
        if chain.cursor > self._log.head:
            self._found("applied-once", f"{chain.cursor} is applied, the log has {self._log.head}")

    def check_drained(self) -> None:
        """Checks that the memory has read the log to its head."""
        memory = self._memory
        if memory.status == "stalled":
            self._found("drained", f"has stalled at {memory.applied_position}")
        elif memory.kind == "state" or memory.status == "sealed":
            # Steps stay recent for long, and a closed tree reads no more.
            return
        elif memory.applied_position != self._log.head:
            self._found("drained", f"is at {memory.applied_position} of {self._log.head}")

    def read(self, event: ReadMemory) -> None:
        """Checks a read of the memory."""
        self._findings.count("reads")
        who = f"{event.client} read revision {event.revision} at {event.applied_position}"
        if event.applied_position < event.wanted_position:
            self._found("token", f"{who}, and wanted {event.wanted_position}")
        self._check_known(who, event.revision, event.applied_position)
        before = self._seen.get(event.client, (0, 0))
        if event.revision < before[0] or event.applied_position < before[1]:
            self._found("read-monotonic", f"{who}, behind {before}")
        now = event.revision, event.applied_position
        self._seen[event.client] = max(before[0], now[0]), max(before[1], now[1])
        if event.digest:
            known = self._digests.setdefault(event.revision, event.digest)
            if known != event.digest:
                self._found("digest", f"{who}: {event.digest}, before {known}")

    def _check_known(self, who: str, revision: int, position: int) -> None:
        if not 0 <= revision < len(self._ends):
            self._found("read", f"{who}; there is no such revision")
            return
        end = self._ends[revision]
        # A state memory is read with the recent steps.
        if position != end and (self._memory.kind != "state" or position < end):
            self._found("read", f"{who}; it was at {end}")

    def watched(self, event: Watched) -> None:
        """Checks a watch of the memory."""
        self._findings.count("watches")
        due = event.after_revision
        for revision, position in event.told:
            due += 1
            if revision != due:
                self._found("watch", f"{event.client} was told {revision} where {due} was due")
                due = revision
            known = self._ends[revision] if 0 <= revision < len(self._ends) else None
            if known is None or position not in (None, known):
                what = f"{event.client} was told {revision} at {position}; it was at {known}"
                self._found("watch", what)

    def edited(self, event: Edited) -> None:
        """Applies an edit of the memory."""
        self._findings.count("edits", bool(event.returned))
        self._edits.edited(event)

    def rolled_back(self, event: RolledBack) -> None:
        """Applies a rollback of the memory."""
        self._edits.rolled_back(event)

    def refused(self, event: Refused) -> None:
        """Records that the service refused an edit."""
        self._findings.count("refused")
        if event.mark:
            self._edits.refused(event)

    def finish(self, serials: Container[int]) -> None:
        """Checks what takes all events; `serials` are those of the ledger."""
        self._findings.count("memories")
        if self._memory.kind == "prism":
            self._check_values(serials)
        for one in self._memory.revisions:
            self._edits.look(one)
            if one.kind == "rollback":
                self._edits.check_rollback(one)
        self._edits.finish(len(self._ends) - 1)
        check_nodes(self._memory, self._ends, self._found)
        check_vectors(self._memory, self._restored, self._found)
        for node in self._memory.nodes:
            for serial in node.serials:
                self._check_serial(f"node {node.level}.{node.index + 1}", serial, serials)
        for vector in self._memory.vectors:
            for serial in vector.serials:
                self._check_serial(f"the vector of {vector.revision}", serial, serials)

    def _check_serial(self, what: str, serial: int, serials: Container[int]) -> None:
        if serial not in serials:
            self._found("ledger-kept", f"{what} has [s{serial}]; the ledger has not")

    def _check_values(self, serials: Container[int]) -> None:
        value, kept = Value(), dict[int, Snapshot]()
        for one in self._memory.revisions:
            restored = None
            if one.restored_revision is not None:
                restored = kept.get(one.restored_revision)
            if one.kind == "rollback" and restored is None:
                self._found("fold", f"{one.revision} restores {one.restored_revision}")
            try:
                value.apply(one.kind, one.amendments, restored)
            except FoldError as error:
                self._found("fold", f"{one.revision}: {error}")
            self._compare(one, value)
            self._check_amendments(one, serials)
            if one.revision in self._restored:
                kept[one.revision] = value.snapshot()
            if one.restored_revision is not None:
                self._drop(kept, one.restored_revision)

    def _drop(self, kept: dict[int, Snapshot], revision: int) -> None:
        self._restored[revision] -= 1
        if not self._restored[revision]:
            kept.pop(revision, None)

    def _compare(self, one: FinalRevision, value: Value) -> None:
        told = {one.digest, self._digests.pop(one.revision, "")} - {""}
        if one.value is not None:
            told.add(_digest(one.value))
            self._findings.count("values")
            if not value.equals(one.value):
                self._found("fold", f"{one.revision} is {_cut(one.value)}")
        if len(told) > 1:
            self._found("digest", f"{one.revision} has {sorted(told)}")
        elif told and one.value is None and self._hashed < HASHED_BYTES:
            text = canonical(value.value)
            self._hashed += len(text)
            is_equal = _digest(text) in told
            if is_equal:
                value.is_ordered = True
            if value.is_ordered:
                self._findings.count("values")
                if not is_equal:
                    self._found("fold", f"{one.revision} has not the digest of its amendments")

    def _check_amendments(self, one: FinalRevision, serials: Container[int]) -> None:
        self._findings.count("amendments", len(one.amendments))
        for path, _, text in one.amendments:
            for match in workload.SERIAL.finditer(text or ""):
                self._check_serial(f"{path} of revision {one.revision}", int(match[1]), serials)
            if one.kind in READING:
                self._check_step(one, path)

    def _check_step(self, one: FinalRevision, path: str) -> None:
        try:
            tokens = parse_path(path)
        except FoldError:
            # The fold has reported it already.
            return
        for token in tokens:
            named = workload.NAME.fullmatch(str(token))
            if named is None:
                continue
            where = self._log.position(named[1], int(named[2]))
            self._findings.count("applied")
            if where is None or not one.from_position < where <= one.to_position:
                what = f"{one.revision} over ({one.from_position}, {one.to_position}]"
                self._found("step-content", f"{what} has {token}, which is at {where}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _cut(text: str) -> str:
    return json.dumps(text if len(text) < 200 else text[:200] + " …", ensure_ascii=False)
