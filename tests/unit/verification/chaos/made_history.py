"""A correct history, made by the model: two producers, a memory of each kind, and readers."""

import hashlib
from dataclasses import dataclass, field
from itertools import count

from verification.chaos.history import (
    Acked,
    Asked,
    Edited,
    Event,
    Final,
    FinalChunk,
    FinalMemory,
    FinalNode,
    FinalRevision,
    FinalSession,
    FinalVector,
    LedgerRow,
    ModelCalled,
    Opened,
    ReadLog,
    ReadMemory,
    Refused,
    RolledBack,
    Sent,
    Watched,
)
from verification.chaos.model import Amendment, Levels, Log, Snapshot, Value, canonical
from verification.chaos.workload import chunk_name

SESSION = "s"
PRODUCERS = ("pa", "pb")
#: Chunks of a batch, and of a leaf; steps of a vector; vectors of an episode.
BATCH, LEAF, PERIOD, EPISODE = 3, 2, 3, 2
ROUNDS = 12


@dataclass(kw_only=True)
class Made:
    """Events and an end that go together."""

    events: list[Event] = field(default_factory=list)
    final: Final


class Maker:
    """Writes down what a service would have done that keeps all promises."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.log = Log()
        self._time = count(1)
        self._serials = count(1)
        self._ledger: list[LedgerRow] = []
        self._value, self._values = Value(), list[Snapshot]()
        self._prism = [_revision(0, "create", 0, 0, value="{}")]
        self._values.append(self._value.snapshot())
        self._tree = [_revision(0, "create", 0, 0)]
        self._nodes: list[FinalNode] = []
        self._levels = Levels()
        self._state = [_revision(0, "create", 0, 0)]
        self._vectors: list[FinalVector] = []

    def make(self) -> Made:
        """Returns the whole history."""
        for name in PRODUCERS:
            self._open(name, 1)
        for number in range(ROUNDS):
            name = PRODUCERS[number % 2]
            if number == 6:
                self._refuse_lower_epoch(name)
            self._append(name, 2 if number >= 6 and name == PRODUCERS[0] else 1)
            self._read_log()
            self._step()
            self._grow()
            self._compress()
            if number % 4 == 1:
                self._edit(f"m{number}")
            if number == 7:
                self._rollback(3)
                self._fold()
            self._read_memory()
            self._ask()
        self._watch()
        return Made(events=self.events, final=self._final())

    def _now(self) -> float:
        return float(next(self._time))

    def _open(self, name: str, epoch: int) -> None:
        invoked = self._now()
        last = self.log.open(name, epoch)
        self.events.append(
            Opened(
                client=f"c-{name}-{epoch}",
                session=SESSION,
                producer=name,
                epoch=epoch,
                last_sequence=last,
                head=self.log.head,
                invoked=invoked,
                at=self._now(),
            )
        )

    def _refuse_lower_epoch(self, name: str) -> None:
        self._open(name, 2)
        known = self.log.producers[name].last
        self._send(name, 1, known + 1)
        self.events.append(
            Refused(
                client=f"c-{name}-1",
                session=SESSION,
                name=name,
                sequence=known + 1,
                reason="PRODUCER_FENCED",
                at=self._now(),
            )
        )

    def _send(self, name: str, epoch: int, first: int, expected_head: int | None = None) -> None:
        self.events.append(
            Sent(
                client=f"c-{name}-{epoch}",
                session=SESSION,
                producer=name,
                epoch=epoch,
                first_sequence=first,
                last_sequence=first + BATCH - 1,
                expected_head=expected_head,
                at=self._now(),
            )
        )

    def _append(self, name: str, epoch: int) -> None:
        first = self.log.producers[name].last + 1
        # Every other batch is for the head that there is.
        expected_head = self.log.head if epoch == 1 and first > BATCH else None
        self._send(name, epoch, first, expected_head)
        sequences = range(first, first + BATCH)
        contents = [chunk_name(name, one) for one in sequences]
        position = self.log.append(name, epoch, sequences, contents, expected_head)
        self.events.append(
            Acked(
                client=f"c-{name}-{epoch}",
                session=SESSION,
                producer=name,
                sequence=sequences[-1],
                position=position,
                token=f"t{position}",
                at=self._now(),
            )
        )

    def _read_log(self) -> None:
        head = self.log.head
        places = [(at, *(self.log.place(at) or ("", 0))) for at in range(head - 1, head + 1)]
        self.events.append(
            ReadLog(
                client="reader",
                session=SESSION,
                from_position=head - 1,
                chunks=places,
                head=head,
                invoked=self._now(),
                returned=self._now(),
            )
        )

    def _call(self, outcome: str = "replied") -> int:
        serial = next(self._serials)
        self.events.append(
            ModelCalled(
                serial=serial, prompt=f"p{serial}", outcome=outcome, is_paid=True, at=self._now()
            )
        )
        self._ledger.append(LedgerRow(session=SESSION, reply=f"[s{serial}] and so on"))
        return serial

    def _step(self) -> None:
        begin, end = self._prism[-1].to_position, self.log.head
        serial = self._call()
        added: list[Amendment] = [
            (f"$['topics']['{self.log.contents[at - 1]}']", "add", canonical(f"[s{serial}]"))
            for at in range(begin + 1, end + 1)
        ]
        self._revise("step", begin, end, added)

    def _revise(
        self,
        kind: str,
        begin: int,
        end: int,
        amendments: list[Amendment],
        restored: int | None = None,
    ) -> None:
        self._value.apply(kind, amendments, None if restored is None else self._values[restored])
        text = canonical(self._value.value)
        # A value is asked for at every third revision only.
        number = len(self._prism)
        self._prism.append(
            FinalRevision(
                revision=number,
                parent=number - 1,
                from_position=begin,
                to_position=end,
                kind=kind,
                epoch=1 + number // 5,
                restored_revision=restored,
                digest=hashlib.sha256(text.encode()).hexdigest(),
                amendments=tuple(amendments),
                value=text if number % 3 == 0 else None,
            )
        )
        self._values.append(self._value.snapshot())

    def _edit(self, mark: str) -> None:
        cursor, revision = self._prism[-1].to_position, self._prism[-1].revision
        for made in (0, revision + 1):
            self.events.append(
                Edited(
                    client="editor",
                    session=SESSION,
                    memory="prism",
                    expected_revision=revision,
                    mark=mark,
                    revision=made,
                    invoked=float(made),
                    returned=self._now() if made else 0.0,
                )
            )
        self._revise("edit", cursor, cursor, [(f"$['edits']['{mark}']", "add", canonical(mark))])
        self.events.append(
            Refused(
                client="editor",
                session=SESSION,
                name="prism",
                sequence=0,
                reason="REVISION_CONFLICT",
                mark=f"{mark}r",
                at=self._now(),
            )
        )

    def _rollback(self, revision: int) -> None:
        cursor = self._prism[-1].to_position
        self._revise("rollback", cursor, cursor, [], revision)
        self.events.append(
            RolledBack(
                client="editor",
                session=SESSION,
                memory="prism",
                expected_revision=self._prism[-2].revision,
                restored_revision=revision,
                revision=self._prism[-1].revision,
                invoked=self._now(),
                returned=self._now(),
            )
        )

    def _fold(self) -> None:
        cursor = self._prism[-1].to_position
        self._revise("fold", cursor, cursor, [])

    def _grow(self) -> None:
        begin, end = self._tree[-1].to_position, self.log.head
        number = len(self._tree)
        self._tree.append(_revision(number, "step", begin, end))
        leaves = sum(node.level == 0 for node in self._nodes)
        while (leaves + 1) * LEAF <= end:
            self._leaf(leaves, number)
            leaves += 1
        parents = len(self._nodes) - leaves
        while (parents + 1) * 2 <= leaves:
            self._parent(parents, number)
            parents += 1

    def _leaf(self, index: int, revision: int) -> None:
        # Each ends three characters before the end of its last chunk.
        self._nodes.append(
            FinalNode(
                level=0,
                index=index,
                first_position=max(index * LEAF, 1),
                first_offset=7 if index else 0,
                last_position=(index + 1) * LEAF,
                last_offset=7,
                serials=(self._call(),),
                revision=revision,
            )
        )

    def _parent(self, index: int, revision: int) -> None:
        leaves = [node for node in self._nodes if node.level == 0]
        first, last = leaves[2 * index], leaves[2 * index + 1]
        self._nodes.append(
            FinalNode(
                level=1,
                index=index,
                first_position=first.first_position,
                first_offset=first.first_offset,
                last_position=last.last_position,
                last_offset=last.last_offset,
                children=(2 * index, 2 * index + 1),
                serials=(),
                revision=revision,
            )
        )

    def _compress(self) -> None:
        while self.log.head - self._state[-1].to_position >= PERIOD:
            begin, number = self._state[-1].to_position, len(self._state)
            self._state.append(_revision(number, "step", begin, begin + PERIOD))
            made = self._levels.step(number, begin, begin + PERIOD)
            self._vector(number, 1, made.after, made.begin, made.end, [])
            if len(self._levels.runs[0]) == EPISODE:
                number, cursor = len(self._state), begin + PERIOD
                self._state.append(_revision(number, "episode", cursor, cursor))
                above, children = self._levels.episode(number, 2)
                assert above is not None
                self._vector(number, 2, above.after, above.begin, above.end, children)

    def _vector(
        self, number: int, level: int, after: int, begin: int, end: int, children: list[int]
    ) -> None:
        self._vectors.append(
            FinalVector(
                revision=number,
                level=level,
                after_position=after,
                from_position=begin,
                to_position=end,
                children=tuple(children),
                serials=(self._call(),),
            )
        )

    def _read_memory(self) -> None:
        for name, revisions in (("prism", self._prism), ("tree", self._tree)):
            newest = revisions[-1]
            self.events.append(
                ReadMemory(
                    client="reader",
                    session=SESSION,
                    memory=name,
                    wanted_position=newest.to_position,
                    revision=newest.revision,
                    applied_position=newest.to_position,
                    digest=newest.digest,
                    invoked=self._now(),
                    returned=self._now(),
                )
            )
        self.events.append(
            ReadMemory(
                client="reader",
                session=SESSION,
                memory="state",
                wanted_position=self.log.head,
                revision=self._state[-1].revision,
                applied_position=self.log.head,
                digest="",
                invoked=self._now(),
                returned=self._now(),
            )
        )

    def _ask(self) -> None:
        self._call()
        self.events.append(
            Asked(
                client="asker",
                session=SESSION,
                memory="prism",
                answer_id=f"a{self._now():.0f}",
                status="done",
                citations=[(1, 1), (2, self.log.head)],
                head=self.log.head,
                invoked=self._now(),
                returned=self._now(),
            )
        )

    def _watch(self) -> None:
        self.events.append(
            Watched(
                client="watcher",
                session=SESSION,
                memory="prism",
                after_revision=2,
                told=[(one.revision, one.to_position) for one in self._prism[3:]],
                at=self._now(),
            )
        )

    def _final(self) -> Final:
        chunks = []
        for position in range(1, self.log.head + 1):
            producer, sequence = self.log.place(position) or ("", 0)
            chunks.append(
                FinalChunk(position=position, producer=producer, sequence=sequence, is_intact=True)
            )
        made = (
            _memory("prism", self._prism),
            _memory("tree", self._tree, nodes=tuple(self._nodes)),
            _memory("state", self._state, vectors=tuple(self._vectors)),
        )
        session = FinalSession(
            name=SESSION, head=self.log.head, chunks=tuple(chunks), memories=made
        )
        return Final(sessions=(session,), ledger=tuple(self._ledger))


def _revision(
    number: int, kind: str, begin: int, end: int, value: str | None = None
) -> FinalRevision:
    return FinalRevision(
        revision=number,
        parent=number - 1 if number else None,
        from_position=begin,
        to_position=end,
        kind=kind,
        epoch=1,
        value=value,
    )


def _memory(
    name: str,
    revisions: list[FinalRevision],
    nodes: tuple[FinalNode, ...] = (),
    vectors: tuple[FinalVector, ...] = (),
) -> FinalMemory:
    return FinalMemory(
        name=name,
        kind=name,
        status="active",
        revision=revisions[-1].revision,
        applied_position=revisions[-1].to_position,
        revisions=tuple(revisions),
        nodes=nodes,
        vectors=vectors,
    )
