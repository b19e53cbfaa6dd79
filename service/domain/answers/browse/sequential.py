"""Runs the options that go piece by piece: DYNAMIC, CARRY and SCAN.

DYNAMIC is algorithm 1, lines 6 to 14. The pieces that a retrieval names are read next, best
first, each at most once; after them it goes on where it was.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.domain.answers.browse.closing import close, succeed
from service.domain.answers.browse.pieces import Browsed
from service.domain.answers.browse.quoting import best_span
from service.domain.answers.browse.reading import BrowseRun, Note, Read
from service.domain.answers.browse.spec import BrowseAction
from service.domain.answers.trajectory import Action, EventKind
from service.domain.prompting.fitting import cut_to
from service.domain.prompting.flows import FetchingFlow

#: Retrievals of one browse, at most.
MAX_RETRIEVALS = 3

#: The actions that a browse chooses among, in the order in which prompts show them.
_DYNAMIC = (
    BrowseAction.RETRIEVE,
    BrowseAction.APPEND,
    BrowseAction.MERGE,
    BrowseAction.ANSWER,
    BrowseAction.AGGREGATION,
)


@dataclass(kw_only=True, slots=True)
class _Sequence:
    """The pieces that are still to be read."""

    reading: BrowseRun
    #: Named by retrieval, best first; they come before the others.
    named: deque[int] = field(default_factory=deque)
    #: In the order of the log, or the other way round.
    line: deque[int] = field(default_factory=deque)
    done: set[int] = field(default_factory=set)
    retrievals: int = 0

    def next(self) -> int:
        """Returns the number of the next piece; 0 when there is none."""
        while self.named or self.line:
            number = (self.named or self.line).popleft()
            if number not in self.done:
                self.done.add(number)
                return number
        return 0

    @property
    def may_retrieve(self) -> bool:
        """Whether retrieval is still allowed; of one piece or two it could save none."""
        allowed = BrowseAction.RETRIEVE in self.reading.request.actions
        return allowed and self.retrievals < MAX_RETRIEVALS and len(self.reading.frames) > 2

    def retrieve(self, query: str, at: int) -> FetchingFlow[tuple[str, ...]]:
        """Puts the pieces that fit best in front, and the present one too if it is among them.

        Nothing was taken from that yet, so that it is not read twice.
        """
        self.retrievals += 1
        found = yield from self.reading.retrieve(query)
        if at in found:
            self.done.discard(at)
        before = [one for one in self.named if one not in found]
        fresh = [one for one in found if one not in self.done]
        self.named = deque([*fresh, *before])
        return self.reading.ids(fresh)


def dynamic(reading: BrowseRun) -> FetchingFlow[Browsed]:
    """Lets the model choose at each piece among the actions that are allowed."""
    sequence = _Sequence(reading=reading, line=deque(reading.numbers))
    allowed = reading.request.actions
    while number := sequence.next():
        actions = [one for one in _DYNAMIC if one in allowed]
        if not sequence.may_retrieve and BrowseAction.RETRIEVE in actions:
            actions.remove(BrowseAction.RETRIEVE)
        if not actions:
            break
        read, replaced = yield from _look(reading, number, reading.offers(*actions))
        if reading.stopped:
            break
        if read is None:
            continue
        said = read.reply
        if said.action is BrowseAction.RETRIEVE:
            yield from _retrieve(sequence, read)
        elif said.action is BrowseAction.ANSWER:
            return (yield from _answered(reading, read))
        else:
            _extract(reading, read, replaced)
        if said.action is BrowseAction.AGGREGATION:
            reading.ending = BrowseAction.AGGREGATION
            break
    return (yield from close(reading))


def carry(reading: BrowseRun, numbers: Sequence[int]) -> FetchingFlow[Browsed]:
    """Runs option 2: one after the other, together with what was extracted before."""
    for number in numbers:
        offers = reading.offers(BrowseAction.MERGE)
        read, replaced = yield from _look(reading, number, offers)
        if reading.stopped:
            break
        if read is not None:
            _extract(reading, read, replaced)
    return (yield from close(reading))


def scan(
    reading: BrowseRun,
    numbers: Sequence[int],
    actions: Sequence[BrowseAction] = (BrowseAction.ANSWER,),
) -> FetchingFlow[Browsed]:
    """Runs option 4: one after the other, until one answers, or ends reading another way."""
    for number in numbers:
        read, replaced = yield from _look(reading, number, reading.offers(*actions))
        if reading.stopped:
            break
        if read is None:
            continue
        if read.reply.action is BrowseAction.ANSWER:
            return (yield from _answered(reading, read))
        _extract(reading, read, replaced)
        if len(actions) > 1 and read.reply.action is BrowseAction.AGGREGATION:
            reading.ending = BrowseAction.AGGREGATION
            break
    return (yield from close(reading))


def _look(
    reading: BrowseRun, number: int, offers: Sequence[BrowseAction]
) -> FetchingFlow[tuple[Read | None, list[Note]]]:
    """Asks about a piece; returns what was read, and the notes that the prompt had in full."""
    (piece,) = yield from reading.pieces([number])
    shown, texts = _shown(reading)
    found = yield from reading.read([piece], offers, texts)
    return (found[0] if found else None), shown


def _shown(reading: BrowseRun) -> tuple[list[Note], list[str]]:
    """Returns the notes that a prompt has room for, the newest first kept, and their texts."""
    left, count = reading.prompts.notes_tokens, reading.prompts.count
    whole: list[Note] = []
    for note in reversed(reading.notes):
        # With the line end that joins it to the next.
        left -= count(note.text + "\n")
        if left < 0:
            break
        whole.insert(0, note)
    if whole or not reading.notes:
        return whole, [note.text for note in whole]
    begun = cut_to(reading.notes[-1].text, reading.prompts.notes_tokens, count)
    return [], [begun] if begun else []


def _extract(reading: BrowseRun, read: Read, replaced: Sequence[Note]) -> None:
    """Takes up what a reply extracted; a merge stands for exactly the notes it was shown."""
    said = read.reply
    if not said.text:
        return
    note = reading.note(read)
    if said.action is BrowseAction.MERGE and replaced:
        before = [span for one in replaced for span in one.spans]
        note = reading.noted(
            note.text,
            [*before, *read.spans],
            [number for one in (*replaced, note) for number in one.pieces],
        )
        reading.notes = reading.notes[: len(reading.notes) - len(replaced)]
    reading.notes.append(note)


def _retrieve(sequence: _Sequence, read: Read) -> FetchingFlow[None]:
    said = read.reply
    query = said.text or sequence.reading.searched
    frame = read.piece.frame
    targets = yield from sequence.retrieve(query, frame.number)
    yield from sequence.reading.tell(
        EventKind.PIECE,
        Action.RETRIEVE,
        frame=frame,
        text=query,
        reasoning=said.reasoning,
        targets=targets,
        ask=read.ask,
        reply=read.replied,
    )


def _answered(reading: BrowseRun, read: Read) -> FetchingFlow[Browsed]:
    """Ends with the answer in a piece's reply, without a further call."""
    text = reading.kept(read.reply)
    noted = [span for note in reading.notes for span in note.spans]
    spans = read.spans or (best_span(text, read.piece.parts, around=reading.prompts.query),)
    return (yield from succeed(reading, text, [*spans, *noted]))
