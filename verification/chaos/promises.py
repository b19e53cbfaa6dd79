"""The promises that a history is checked for, each with its short name."""

from collections import Counter
from dataclasses import dataclass, field

from verification.chaos.history import Violation

PROMISES = {
    # The log.
    "dense": "Positions are 1, 2, 3 … up to the head.",
    "producer-order": "A producer's chunks are in the order of its sequences, each once.",
    "intact": "A chunk says what was sent.",
    "sent-only": "Nothing is in the log that nobody sent.",
    "acked-kept": "An acked chunk is at its position for ever.",
    "acked-through": "An ack of a sequence is one of all sequences up to it.",
    "request": "A request is stored once, all together, however often it is sent.",
    "server-order": "What comes without a producer is counted 1, 2, 3 … by the service.",
    "page": "A page of the log has what is there, in order, from where it was asked for.",
    "opened": "Opening says a last sequence that is not below what was acked before.",
    "head": "A head that was told before is never gone back behind.",
    "no-foresight": "Nothing is told before it was sent.",
    "fenced": "A producer's lower epoch writes nothing once a higher one was opened.",
    "expected-head": "What was sent for an expected head stands right behind it.",
    "unchanged": "A resend of the same content is never refused as other content.",
    # Memories of all kinds.
    "kept": "Sessions and memories that somebody was told of are there.",
    "revisions": "Revisions have no gap, no repeat and no fork.",
    "applied-once": "Each position is applied once, in order: a step begins where one ended.",
    "cursor": "A memory stands where its newest revision put it.",
    "epochs": "A worker that lost a memory commits nothing any more.",
    "drained": "When nothing is left to do each memory has read its log to the head.",
    "token": "A read with a token is never older than the token.",
    "read": "A read has a revision that there is, and the position that it was at.",
    "read-monotonic": "Reads of a memory by one client never go back.",
    "watch": "A watch tells each revision behind its start once, in order.",
    # PRISM memories.
    "fold": "At any revision a memory is the fold of its amendments.",
    "digest": "A memory that was read at a revision is what it is at that revision.",
    "step-content": "A step brings what its own chunks say, and nothing of other chunks.",
    "edit-kept": "An edit that was acked is in its revision.",
    "edit-refused": "An edit that was refused is nowhere.",
    "edit-once": "An edit is made at most as often as it was asked for.",
    "edit-next": "An edit for an expected revision makes exactly the next one.",
    "rollback": "A rollback that was acked is the revision that it said.",
    # Trees and state memories.
    "tree-cover": "Leaves cover the text without a hole or an overlap, as far as it was read.",
    "tree-parents": "Parents cover their children, and each child has one parent.",
    "vectors": "State vectors stand for the steps one after the other.",
    "episodes": "Episodes take over all that their level has made, and nothing else.",
    # Answers and calls.
    "citation": "An answer cites what is in the log.",
    "ledger-called": "The ledger has no reply that no model gave.",
    "ledger-once": "A reply is in the ledger once.",
    "ledger-kept": "What memories hold of a reply has its row in the ledger.",
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
        """A promise was broken."""
        assert promise in PROMISES, promise
        self.counts[promise] += 1
        if self.counts[promise] <= KEPT:
            self.violations.append(Violation(promise=promise, what=what))

    def count(self, name: str, number: int = 1) -> None:
        """So many of these were looked at."""
        self.counts[name] += number

    def report(self) -> Report:
        """All of it."""
        return Report(violations=self.violations, counts=dict(self.counts))
