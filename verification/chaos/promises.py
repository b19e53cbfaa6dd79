"""The promises that a history is checked for, each with its short name."""

from collections import Counter
from dataclasses import dataclass, field

from verification.chaos.history import Violation

PROMISES = {
    # The log.
    "dense": "Positions are 1, 2, 3 … up to the head.",
    "producer-order": "A producer's chunks are in the order of its sequences, each once.",
    "intact": "A chunk says what was sent.",
    "sent-only": "Nothing is in the log that no client sent.",
    "acked-kept": "An acked chunk is at its position for ever.",
    "acked-through": "An ack of a sequence is one of all sequences up to it.",
    "request": "A request is stored once and as a whole, however often it is sent.",
    "server-order": "The service numbers chunks without a producer 1, 2, 3 …",
    "page": "A page of the log has all chunks from the requested position on, in order.",
    "opened": "Opening a producer returns a last sequence that is not below one acked before.",
    "head": "A head never falls below one that was reported before.",
    "no-foresight": "Nothing is reported before it was sent.",
    "fenced": "A producer's lower epoch writes nothing once a higher one was opened.",
    "expected-head": "A batch for an expected head is stored directly after it.",
    "unchanged": "A resend of the same content is never refused as other content.",
    # Memories of all kinds.
    "kept": "Sessions and memories whose creation was confirmed exist.",
    "revisions": "Revisions have no gap, no repeat and no fork.",
    "applied-once": "Each position is applied once, in order: a step begins where one ended.",
    "cursor": "A memory's cursor is where its newest revision ended.",
    "epochs": "A worker that lost a memory commits nothing to it any more.",
    "drained": "When no work is left, each memory has read its log to the head.",
    "token": "A read with a token is never older than the token.",
    "read": "A read names a revision that exists, and the position of that revision.",
    "read-monotonic": "Reads of a memory by one client never go back.",
    "watch": "A watch sends each revision after its start once, in order.",
    # PRISM memories.
    "fold": "At any revision a memory is the fold of its amendments.",
    "digest": "A memory that was read at a revision has the value of that revision.",
    "step-content": "A step adds what its own chunks say, and nothing of other chunks.",
    "edit-kept": "An edit that was acked is in its revision.",
    "edit-refused": "An edit that was refused is in no revision.",
    "edit-once": "An edit is made at most as often as it was requested.",
    "edit-next": "An edit for an expected revision makes exactly the next one.",
    "rollback": "A rollback that was acked is the revision that its reply named.",
    # Trees and state memories.
    "tree-cover": "Leaves cover the text without a hole or an overlap, as far as it was read.",
    "tree-parents": "Parents cover their children, and each child has one parent.",
    "vectors": "State vectors stand for the steps one after the other.",
    "episodes": "Episodes cover all vectors of the level below, and nothing else.",
    # Answers and calls.
    "citation": "An answer cites what is in the log.",
    "ledger-called": "Each reply in the ledger came from the model.",
    "ledger-once": "A reply is in the ledger once.",
    "ledger-kept": "Each reply that memories use has its row in the ledger.",
}

#: Violations of one promise that are kept: the first ones say the most.
KEPT = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What was checked, and what was found."""

    #: The first KEPT of each promise, in the order in which they were found.
    violations: list[Violation]
    #: How often each promise was broken, under its name, and how much was looked at:
    #: chunks, acks, pages, reads, watches, edits, answers, calls, paid_twice, revisions, …
    counts: dict[str, int]

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.violations


@dataclass(slots=True)
class Findings:
    """What has been found so far."""

    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, promise: str, what: str) -> None:
        """Records that a promise was broken."""
        assert promise in PROMISES, promise
        self.counts[promise] += 1
        if self.counts[promise] <= KEPT:
            self.violations.append(Violation(promise=promise, what=what))

    def count(self, name: str, number: int = 1) -> None:
        """Counts so many that were checked."""
        self.counts[name] += number

    def report(self) -> Report:
        """Returns all of it."""
        return Report(violations=self.violations, counts=dict(self.counts))
