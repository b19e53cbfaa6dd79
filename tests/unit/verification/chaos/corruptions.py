"""Corrupted histories: for each promise at least one that breaks it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.unit.verification.chaos.made_history import Made
from verification.chaos.history import (
    Acked,
    Asked,
    Edited,
    Event,
    Final,
    FinalChunk,
    FinalMemory,
    LedgerRow,
    ModelCalled,
    Opened,
    ReadLog,
    ReadMemory,
    Refused,
    Requested,
    RolledBack,
    Sent,
    Watched,
)

Corrupt = Callable[[Made], Made]


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """A way to break a promise."""

    promise: str
    name: str
    corrupt: Corrupt


def event(kind: type[Any], change: Callable[[Any], Any], at: int = 0, **fields: Any) -> Corrupt:
    """Changes the `at`-th event of a kind that has these fields; None takes it away."""

    def corrupt(made: Made) -> Made:
        found = [
            number
            for number, one in enumerate(made.events)
            if isinstance(one, kind) and all(getattr(one, k) == v for k, v in fields.items())
        ]
        events: list[Event] = list(made.events)
        changed = change(events[found[at]])
        events[found[at] : found[at] + 1] = [] if changed is None else [changed]
        return replace(made, events=events)

    return corrupt


def added(make: Callable[[Made], Event]) -> Corrupt:
    """Puts an event after all others."""
    return lambda made: replace(made, events=[*made.events, make(made)])


def requested(made: Made, **changes: int) -> Requested:
    """Returns a request that stored what is there at position 1, or says so wrongly."""
    (first, *_) = made.final.sessions[0].chunks
    of = {"first_sequence": first.sequence, "last_sequence": first.sequence}
    where = {"first_position": 1, "position": 1}
    return Requested(
        client="requests",
        session=made.final.sessions[0].name,
        producer=first.producer,
        at=9e9,
        **{**of, **where, **changes},
    )


def final(change: Callable[[Final], Final]) -> Corrupt:
    """Changes what is there in the end."""
    return lambda made: replace(made, final=change(made.final))


def session(**changes: Callable[[Any], Any]) -> Corrupt:
    """Changes fields of the session."""

    def change(end: Final) -> Final:
        (one,) = end.sessions
        fields = {name: how(getattr(one, name)) for name, how in changes.items()}
        return replace(end, sessions=(replace(one, **fields),))

    return final(change)


def chunks(change: Callable[[list[FinalChunk]], Sequence[FinalChunk]]) -> Corrupt:
    """Changes the log."""
    return session(chunks=lambda held: tuple(change(list(held))))


def memory(name: str, change: Callable[[FinalMemory], FinalMemory]) -> Corrupt:
    """Changes a memory."""
    return session(
        memories=lambda held: tuple(change(one) if one.name == name else one for one in held)
    )


def part(name: str, parts: str, at: int, **changes: Any) -> Corrupt:
    """Changes fields of a memory's revision, node or vector; callables get what is there."""

    def change(held: FinalMemory) -> FinalMemory:
        found = list(getattr(held, parts))
        fields: dict[str, Any] = {
            field: value(getattr(found[at], field)) if callable(value) else value
            for field, value in changes.items()
        }
        found[at] = replace(found[at], **fields)
        whole: dict[str, Any] = {parts: tuple(found)}
        return replace(held, **whole)

    return memory(name, change)


def ledger(change: Callable[[list[LedgerRow]], Sequence[LedgerRow]]) -> Corrupt:
    """Changes the ledger."""
    return final(lambda end: replace(end, ledger=tuple(change(list(end.ledger)))))


def plus(number: int) -> Callable[[int], int]:
    """Returns a function that adds so much."""
    return lambda held: held + number


def swapped(held: list[Any], one: int, other: int) -> list[Any]:
    """Returns two chunks of the same producer at each other's places."""
    first, second = held[one], held[other]
    held[one] = replace(first, sequence=second.sequence)
    held[other] = replace(second, sequence=first.sequence)
    return held


def without(held: FinalMemory, revision: int) -> FinalMemory:
    """Returns a memory that lost a revision."""
    return replace(held, revisions=tuple(r for r in held.revisions if r.revision != revision))


def lost(held: list[FinalChunk], at: int) -> list[FinalChunk]:
    """Returns a log that lost a chunk, whose place others took."""
    del held[at]
    return [replace(one, position=number) for number, one in enumerate(held, start=1)]


def one_is_another(held: list[FinalChunk]) -> list[FinalChunk]:
    """Returns a log where another one's chunk is where the last but one was."""
    return [*held[:-2], replace(held[-2], producer="pc", sequence=1), held[-1]]


def late(made: Made) -> Event:
    """Reads the first page of the log when there was more."""
    page = next(one for one in made.events if isinstance(one, ReadLog))
    return replace(page, client="late", invoked=9e9, returned=9e9)


def without_expected_head(made: Made) -> Made:
    """Claims that all batches were sent for the empty log."""
    events = [replace(e, expected_head=0) if isinstance(e, Sent) else e for e in made.events]
    return replace(made, events=events)


def lower_epoch(made: Made) -> Event:
    """Returns an ack of what a lower epoch sent when a higher one was opened."""
    refused = next(one for one in made.events if isinstance(one, Refused) and one.sequence)
    (session_,) = made.final.sessions
    where = next(
        one.position
        for one in session_.chunks
        if (one.producer, one.sequence) == (refused.name, refused.sequence)
    )
    return Acked(
        client=refused.client,
        session=refused.session,
        producer=refused.name,
        sequence=refused.sequence,
        position=where,
        token="",
        at=9e9,
    )


def acked_instead_of_refused(made: Made) -> Made:
    """Lets the lower epoch write."""
    ack = lower_epoch(made)
    events = [
        ack if isinstance(one, Refused) and one.reason == "PRODUCER_FENCED" else one
        for one in made.events
    ]
    return replace(made, events=events)


def refused_edit(made: Made) -> Event:
    """Returns the refusal of an edit that was made, whose ack is gone."""
    return Refused(
        client="editor",
        session="s",
        name="prism",
        sequence=0,
        reason="REVISION_CONFLICT",
        mark="m1",
        at=9e9,
    )


def edit_refused_and_made(made: Made) -> Made:
    """Reports an edit as refused that was made."""
    without_ack = event(Edited, lambda _: None, mark="m1", returned=acked_at(made))(made)
    return added(refused_edit)(without_ack)


def acked_at(made: Made) -> float:
    """Returns when the first edit was acked."""
    return next(one.returned for one in made.events if isinstance(one, Edited) and one.returned)


def edit_made_twice(held: FinalMemory) -> FinalMemory:
    """Repeats an edit in the last revision."""
    mark = ("$['edits']['m1']", "update", '"m1"')
    last = tuple(held.revisions)[-1]
    again = replace(
        last,
        revision=last.revision + 1,
        parent=last.revision,
        kind="edit",
        from_position=last.to_position,
        amendments=(mark,),
        digest="",
        value=None,
    )
    return replace(held, revision=again.revision, revisions=(*held.revisions, again))


REFUSED_CONTENT = Refused(
    client="c-pa-1", session="s", name="pa", sequence=1, reason="SEQUENCE_CONTENT_CHANGED", at=9e9
)

_CORRUPTIONS: dict[str, dict[str, Corrupt]] = {
    "dense": {
        "a hole": chunks(lambda held: [*held[:4], *held[5:]]),
        "a head that is not there": session(head=plus(1)),
        "a position twice": chunks(lambda held: [*held[:4], held[3], *held[4:]]),
    },
    "producer-order": {
        "two chunks at each other's places": chunks(lambda held: swapped(held, 0, 1)),
        "a chunk twice": chunks(
            lambda held: [*held[:-1], replace(held[-1], sequence=held[-1].sequence - 1)]
        ),
    },
    "intact": {"another text": chunks(lambda h: [replace(h[0], is_intact=False), *h[1:]])},
    "sent-only": {"a batch that nobody sent": event(Sent, lambda _: None, 3)},
    "acked-kept": {
        "a chunk that is gone": chunks(lambda held: lost(held, 35)),
        "another position": event(Acked, lambda e: replace(e, position=e.position - 1), 2),
    },
    "acked-through": {"one of those before is gone": chunks(one_is_another)},
    "request": {
        "elsewhere than it was told": added(lambda made: requested(made, first_position=2)),
        "longer than it was": added(lambda made: requested(made, position=2)),
    },
    "server-order": {
        "a number left out": chunks(lambda held: [replace(held[0], server_sequence=2), *held[1:]])
    },
    "page": {
        "another chunk": event(
            ReadLog, lambda e: replace(e, chunks=[(*e.chunks[0][:2], 99), *e.chunks[1:]])
        ),
        "a hole": event(ReadLog, lambda e: replace(e, chunks=e.chunks[1:])),
        "nothing": event(ReadLog, lambda e: replace(e, chunks=[])),
        "a chunk twice": event(ReadLog, lambda e: replace(e, chunks=[e.chunks[0], *e.chunks]), 2),
        "more than there is": event(ReadLog, lambda e: replace(e, head=e.head - 1), 2),
    },
    "opened": {
        "a last sequence that was passed": event(
            Opened, lambda e: replace(e, last_sequence=e.last_sequence - 1), -1
        )
    },
    "head": {
        "a page of an older log": added(late),
        "opened with an older head": event(Opened, lambda e: replace(e, head=e.head - 1), -1),
    },
    "no-foresight": {
        "an ack before it was sent": event(Acked, lambda e: replace(e, at=0.5), 4),
        "a head before it was sent": event(ReadLog, lambda e: replace(e, head=e.head + 1), 3),
    },
    "fenced": {
        "an ack for a lower epoch": acked_instead_of_refused,
        "chunks of a lower epoch that nobody heard of": event(
            Opened, lambda one: replace(one, epoch=one.epoch + 9)
        ),
    },
    "expected-head": {"what stands elsewhere": without_expected_head},
    "unchanged": {"a resend that is refused": added(lambda _: REFUSED_CONTENT)},
    "kept": {
        "a session that is gone": final(lambda end: replace(end, sessions=())),
        "a memory that is gone": session(memories=lambda held: held[1:]),
    },
    "revisions": {
        "a gap": memory("prism", lambda held: without(held, 2)),
        "a parent that is none": part("prism", "revisions", 5, parent=2),
        "a second beginning": part("tree", "revisions", 3, kind="create"),
    },
    "applied-once": {
        "a position twice": part("prism", "revisions", 1, to_position=plus(-1)),
        "a position left out": part("tree", "revisions", 2, from_position=plus(1)),
        "a fold that reads": part("prism", "revisions", 2, kind="fold"),
    },
    "cursor": {
        "a cursor that no revision wrote": memory(
            "tree", lambda held: replace(held, applied_position=held.applied_position - 1)
        ),
        "a revision that is not there": memory(
            "prism", lambda held: replace(held, revision=held.revision + 1)
        ),
    },
    "epochs": {"an older worker": part("prism", "revisions", 9, epoch=0)},
    "drained": {
        "a memory that stays behind": memory(
            "tree", lambda held: replace(without(held, 12), revision=11, applied_position=33)
        ),
        "one that has stalled": memory("prism", lambda held: replace(held, status="stalled")),
    },
    "token": {
        "an older read": event(
            ReadMemory, lambda e: replace(e, wanted_position=e.applied_position + 1), 4
        )
    },
    "read": {
        "a revision that is none": event(ReadMemory, lambda e: replace(e, revision=99)),
        "another position": event(ReadMemory, lambda e: replace(e, applied_position=2)),
        "a state without its steps": event(
            ReadMemory, lambda e: replace(e, applied_position=0, wanted_position=0), memory="state"
        ),
    },
    "read-monotonic": {
        "an older revision": added(
            lambda made: next(one for one in made.events if isinstance(one, ReadMemory))
        )
    },
    "watch": {
        "one left out": event(Watched, lambda e: replace(e, told=[*e.told[:3], *e.told[4:]])),
        "one twice": event(Watched, lambda e: replace(e, told=[*e.told[:3], *e.told[2:]])),
        "another start": event(Watched, lambda e: replace(e, after_revision=1)),
        "another position": event(Watched, lambda e: replace(e, told=[(3, 1), *e.told[1:]])),
    },
    "fold": {
        "an amendment left out": part("prism", "revisions", 4, amendments=lambda all_: all_[1:]),
        "another value": part("prism", "revisions", 3, value='{"topics":{}}'),
        "another order": part(
            "prism", "revisions", 1, amendments=lambda all_: tuple(reversed(all_))
        ),
        "nothing to remove": part(
            "prism", "revisions", 2, amendments=(("$['topics']['x']", "remove", None),)
        ),
        "a rollback to another revision": part("prism", "revisions", 10, restored_revision=4),
    },
    "digest": {
        "another value": event(ReadMemory, lambda e: replace(e, digest="0" * 64), memory="prism")
    },
    "step-content": {
        "a chunk of another step": part(
            "prism",
            "revisions",
            1,
            amendments=lambda all_: (*all_, ("$['topics']['cpbx3']", "add", '"x"')),
        )
    },
    "edit-kept": {
        "an edit that is gone": part("prism", "revisions", 3, amendments=()),
        "one that is elsewhere": event(
            Edited, lambda e: replace(e, revision=e.revision + 1), 1, mark="m1"
        ),
    },
    "edit-refused": {"a refused edit that is there": edit_refused_and_made},
    "edit-once": {
        "an edit that is there twice": memory("prism", edit_made_twice),
        "an edit of nobody": lambda made: replace(
            made,
            events=[e for e in made.events if not (isinstance(e, Edited) and e.mark == "m5")],
        ),
    },
    "edit-next": {
        "another revision": lambda made: replace(
            made,
            events=[
                replace(e, expected_revision=1) if isinstance(e, Edited) else e for e in made.events
            ],
        ),
        "a rollback of another revision": event(
            RolledBack, lambda e: replace(e, expected_revision=2)
        ),
    },
    "rollback": {
        "another one": event(RolledBack, lambda e: replace(e, restored_revision=4)),
        "one that is gone": event(RolledBack, lambda e: replace(e, revision=99)),
    },
    "tree-cover": {
        "a hole": part("tree", "nodes", 0, last_offset=3),
        "an overlap": part("tree", "nodes", 0, last_position=3),
        "more than was read": part("tree", "nodes", -1, revision=1),
        "a node twice": part("tree", "nodes", 1, index=0),
        "a closed tree without its end": memory("tree", lambda h: replace(h, status="sealed")),
    },
    "tree-parents": {
        "a leaf with children": part("tree", "nodes", 0, children=(0,)),
        "a child of another parent": part("tree", "nodes", 3, children=(0, 1, 2)),
        "a parent that covers less": part("tree", "nodes", 3, children=(0,)),
        "a child that is not there": part("tree", "nodes", -1, children=tuple(range(99))),
        "many roots": memory("tree", lambda held: replace(held, status="sealed")),
    },
    "vectors": {
        "a vector that is gone": memory(
            "state", lambda held: replace(held, vectors=held.vectors[1:])
        ),
        "other steps": part("state", "vectors", 0, from_position=1),
        "more than its own": part("state", "vectors", 1, after_position=plus(1)),
    },
    "episodes": {
        "a child left out": part("state", "vectors", 2, children=lambda all_: all_[1:]),
        "another level": part("state", "vectors", 2, level=3),
        "no vector": memory(
            "state", lambda h: replace(h, vectors=(*h.vectors[:2], *h.vectors[3:]))
        ),
    },
    "citation": {
        "what is not there": event(Asked, lambda e: replace(e, citations=[(36, 37)]), -1),
        "nothing": event(Asked, lambda e: replace(e, citations=[(3, 2)])),
    },
    "ledger-called": {
        "a reply of nobody": ledger(lambda rows: [*rows, LedgerRow(session="s", reply="[s999]")])
    },
    "ledger-once": {
        "a row twice": ledger(lambda rows: [*rows, rows[0]]),
        "a serial twice": added(
            lambda made: next(one for one in made.events if isinstance(one, ModelCalled))
        ),
    },
    "ledger-kept": {
        "a step without its row": ledger(lambda rows: rows[1:]),
        "a leaf without its row": ledger(lambda rows: [*rows[:1], *rows[2:]]),
        "a vector of nobody": part("state", "vectors", 0, serials=(999,)),
    },
}

CORRUPTIONS = tuple(
    Corruption(promise=promise, name=name, corrupt=corrupt)
    for promise, ways in _CORRUPTIONS.items()
    for name, corrupt in ways.items()
)
