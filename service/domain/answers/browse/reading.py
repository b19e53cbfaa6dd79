"""Reading pieces: one call each, which chooses the action and gives its content at once.

In algorithm 1 an action is selected (line 7) and then carried out (lines 10 and 11). Here
one reply does both, as section 4.2 has it for "null": half of the calls.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from service.domain.answers.browse.pieces import BrowsePiece, Frame, RankPieces, ReadPiece, Span
from service.domain.answers.browse.prompts import BrowsePrompts, noted
from service.domain.answers.browse.quoting import best_fitting, best_span, spans_of
from service.domain.answers.browse.replies import PieceReply, read_piece
from service.domain.answers.browse.spec import (
    BrowseAction,
    BrowseRequest,
    QuerySubject,
    ReadingOrder,
)
from service.domain.answers.trajectory import Action, Emit, EventKind, EventSequence
from service.domain.prompting.asking import MAX_TRIES, NoUse, Unusable, text_of
from service.domain.prompting.cutting import largest
from service.domain.prompting.flows import FetchingFlow, FlowRequest, ModelReply, ModelRequest

T = TypeVar("T")

#: Places that a note is said to rest on: it may be made of hundreds of pieces.
MAX_NOTE_SPANS = 60
#: Pieces whose text is held at once, and whose events come together: more than a driver asks
#: at the same time, and few enough that clients see progress.
MAX_BATCH = 32

ACTIONS = {
    BrowseAction.MOVE: Action.MOVE,
    BrowseAction.RETRIEVE: Action.RETRIEVE,
    BrowseAction.APPEND: Action.APPEND,
    BrowseAction.MERGE: Action.MERGE,
    BrowseAction.ANSWER: Action.ANSWER,
    BrowseAction.AGGREGATION: Action.AGGREGATE,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """What was extracted."""

    text: str
    #: Where in the log that stands; at least one place.
    spans: tuple[Span, ...]
    #: Numbers of the pieces that it is from, ascending.
    pieces: tuple[int, ...]
    #: Tokens that it takes of a prompt.
    cost: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """A piece with a reply that could be read."""

    piece: BrowsePiece
    reply: PieceReply
    #: The last ask and what came back.
    ask: ModelRequest
    replied: ModelReply
    #: The reply's quotes that stand in the piece.
    spans: tuple[Span, ...] = ()


@dataclass(kw_only=True, slots=True)
class BrowseRun:
    """One browsing under way.

    The fields of each event, for exports:

    - UNDERSTANDING: NONE, or INVALID; `targets` is the option, `text` the query in other
      words, `reasoning` the subject and the order.
    - RETRIEVAL: NONE; `text` is what was searched for, `shown` the pieces, best first.
    - PIECE: APPEND, MERGE, MOVE, RETRIEVE (`targets`: the pieces), ANSWER, AGGREGATE (`text`:
      what the piece adds) or INVALID. Without a template the action was by lot.
    - AGGREGATION: ANSWER, AGGREGATE, NONE (null) or INVALID; `shown` are the pieces it is from.
    - END: ANSWER with the answer, or NONE with the value of NoAnswer; `reasoning` says that it
      is a guess, or why no reply was of use.
    """

    prompts: BrowsePrompts
    request: BrowseRequest
    frames: Sequence[Frame]
    order: ReadingOrder = ReadingOrder.FORWARD
    #: None: without task understanding.
    subject: QuerySubject | None = None
    #: How reading was ended at a piece; None: it was not, or by its end.
    ending: BrowseAction | None = None
    notes: list[Note] = field(default_factory=list)
    calls: int = 0
    #: Whether reading ended because the calls are needed for the answer.
    stopped: bool = False
    #: Pieces with a reply that could be read, and those without.
    readable: int = 0
    passed: int = 0
    #: Why a reply was no use, of the last that was given up.
    cause: str = ""
    #: Pieces that retrieval has named and that are none of `frames`, by number.
    _others: dict[int, Frame] = field(default_factory=dict)
    _events: EventSequence = field(default_factory=EventSequence)

    @property
    def searched(self) -> str:
        """What is searched for: all of the query, which may have lines, and the other words."""
        return "\n".join(filter(None, (self.prompts.query, self.prompts.look_for)))

    @property
    def calls_left(self) -> int:
        """Model calls that may still be made."""
        return self.request.max_calls - self.calls

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the pieces, in the order of reading."""
        forward = range(1, len(self.frames) + 1)
        return forward if self.order is ReadingOrder.FORWARD else forward[::-1]

    @property
    def may_move(self) -> bool:
        """Whether a piece may be passed by."""
        return BrowseAction.MOVE in self.request.actions

    def offers(self, *actions: BrowseAction) -> tuple[BrowseAction, ...]:
        """Returns these actions, and MOVE where it is allowed."""
        return (BrowseAction.MOVE, *actions) if self.may_move else actions

    def frame(self, number: int) -> Frame:
        """Returns a piece's frame, by its number."""
        return self._others.get(number) or self.frames[number - 1]

    def ids(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """Returns what trajectories call these pieces."""
        return tuple(self.frame(number).piece_id for number in numbers)

    def fitting(self, numbers: Sequence[int], room: int) -> list[int]:
        """Returns as many of the pieces, from the first one on, as have room in a prompt."""
        fitting: list[int] = []
        for number in numbers:
            # With the line end that joins it to the next.
            room -= self.frame(number).tokens
            if room < 0:
                break
            fitting.append(number)
        return fitting

    def ask(
        self, asks: Sequence[ModelRequest]
    ) -> Generator[Sequence[FlowRequest], Sequence[Any], Any]:
        """Returns the replies to prompts, and counts the calls."""
        self.calls += len(asks)
        replies = yield asks
        return replies

    def tell(
        self, kind: EventKind, action: Action, *, frame: Frame | None = None, **said: Any
    ) -> FetchingFlow[None]:
        """Emits the next event, at a piece if one is given; `said` are its further fields."""
        if frame is not None:
            said |= {
                "node_id": frame.piece_id,
                "from_position": frame.from_position,
                "to_position": frame.to_position,
            }
        yield [Emit(event=self._events.add(kind, action, **said))]

    def affordable(self, wanted: int, cost: int, beside: int) -> int:
        """Returns how many of so many pieces may be asked for, so that the answer can be made.

        `cost` is what the note of each may take of a prompt; 0: they make none. `beside` are
        pieces that were read and whose notes are not among `notes` yet.
        """

        def fits(number: int) -> bool:
            more = [cost] * (number + beside) if cost else []
            return number + self.closing_calls(more) <= self.calls_left

        return largest(0, min(wanted, max(self.calls_left, 0)), fits)

    def closing_calls(self, more: Sequence[int] = ()) -> int:
        """Calls that the answer from the notes takes, with further ones of these costs."""
        free = self.prompts.closing_free
        costs = [*(note.cost for note in self.notes), *more]
        calls = 1 if costs else 0
        condensed = self.prompts.note_tokens + self.prompts.note_cost("")
        while sum(costs) > free:
            groups = grouped(costs, free)
            made = sum(len(group) > 1 for group in groups)
            costs = [condensed if len(group) > 1 else costs[group[0]] for group in groups]
            calls += made
        return calls

    def retrieve(self, query: str) -> FetchingFlow[tuple[int, ...]]:
        """Returns the numbers of the pieces that fit best, best first, each once."""
        count = min(self.request.pieces, len(self.frames))
        (found,) = yield [RankPieces(query=query, count=count, rerank=self.request.rerank)]
        self._others |= {one.number: one for one in found if one.number > len(self.frames)}
        return tuple(dict.fromkeys(one.number for one in found))[:count]

    def pieces(self, numbers: Sequence[int]) -> FetchingFlow[tuple[BrowsePiece, ...]]:
        """Returns pieces with their texts."""
        return tuple((yield [ReadPiece(number=number) for number in numbers]))

    def read(
        self,
        pieces: Sequence[BrowsePiece],
        offers: Sequence[BrowseAction],
        notes: Sequence[str] = (),
    ) -> FetchingFlow[list[Read]]:
        """Asks what to do with each of these pieces, all at once, until their replies are read.

        After MAX_TRIES replies of no use, or where its text is refused, a piece is passed; without
        calls for all of them the last are left out. Neither are returned. Emits their events,
        except RETRIEVE, whose pieces are not known yet.
        """
        cost = self._cost(offers)
        read: dict[int, Read] = {}
        passed = 0
        first = [self.prompts.piece(piece.parts, notes, offers) for piece in pieces]
        waiting = dict(enumerate(first))
        while waiting:
            may = self.affordable(len(waiting), cost, len(read) + passed)
            if may < len(waiting):
                self.stopped = True
                waiting = dict(list(waiting.items())[:may])
            asks = list(waiting.values())
            replies = (yield from self.ask(asks)) if asks else []
            again: dict[int, ModelRequest] = {}
            for (at, ask), reply in zip(waiting.items(), replies, strict=True):
                try:
                    read[at] = self._understood(pieces[at], offers, ask, reply)
                except (Unusable, NoUse) as fault:
                    yield from self.tell(
                        EventKind.PIECE,
                        Action.INVALID,
                        frame=pieces[at].frame,
                        text=str(fault),
                        ask=ask,
                        reply=reply,
                    )
                    if isinstance(fault, Unusable) and ask.attempt + 1 < MAX_TRIES:
                        again[at] = self.prompts.again(first[at], ask, reply, str(fault))
                        continue
                    passed += 1
                    self.cause = str(fault)
                else:
                    yield from self._told(read[at])
            waiting = again
        self.passed += passed
        return [read[at] for at in sorted(read)]

    def aggregate(
        self,
        first: Mapping[int, ModelRequest],
        read: Callable[[int, str], tuple[Action, str, T]],
        *,
        shown: Mapping[int, Sequence[int]],
        kept: Callable[[], int] = lambda: 0,
    ) -> FetchingFlow[tuple[dict[int, T], dict[int, str]]]:
        """Asks each of these prompts until a reply is of use, MAX_TRIES times at most.

        `read` returns action and text of a reply's event, and its value, or raises Unusable.
        `shown` are the pieces that a prompt is from, `kept` the calls that no further try may
        use. Returns the values, and why others have none; neither where no calls were left.
        """
        found: dict[int, T] = {}
        faults: dict[int, str] = {}
        waiting = dict(first)
        while waiting:
            replies = yield from self.ask(list(waiting.values()))
            again: dict[int, ModelRequest] = {}
            for (number, ask), reply in zip(waiting.items(), replies, strict=True):
                try:
                    action, text, found[number] = read(number, text_of(reply))
                except (Unusable, NoUse) as fault:
                    action, text = Action.INVALID, str(fault)
                    if isinstance(fault, Unusable) and ask.attempt + 1 < MAX_TRIES:
                        again[number] = self.prompts.again(first[number], ask, reply, text)
                    else:
                        faults[number] = text
                yield from self.tell(
                    EventKind.AGGREGATION,
                    action,
                    shown=self.ids(shown.get(number, ())),
                    text=text,
                    ask=ask,
                    reply=reply,
                )
            waiting = dict(list(again.items())[: max(self.calls_left - kept(), 0)])
        return found, faults

    def _cost(self, offers: Sequence[BrowseAction]) -> int:
        if set(offers) <= {BrowseAction.MOVE, BrowseAction.ANSWER}:
            return 0
        longest = max(self.prompts.note_tokens, self.prompts.notes_tokens)
        return longest + self.prompts.note_cost("")

    def _understood(
        self,
        piece: BrowsePiece,
        offers: Sequence[BrowseAction],
        ask: ModelRequest,
        reply: ModelReply,
    ) -> Read:
        """Reads a reply. Raises Unusable, NoUse."""
        said = read_piece(text_of(reply), offers)
        limit = self.prompts.notes_tokens
        is_merge = said.action is BrowseAction.MERGE
        # Notes that end anywhere have lost what was noted before. A second reply is cut.
        if ask.attempt == 0 and is_merge and self.prompts.count(said.text) > limit:
            raise Unusable(f"its text has more than {limit} tokens")
        self.readable += 1
        spans = spans_of(said.quotes, piece.parts)
        return Read(piece=piece, reply=said, spans=spans, ask=ask, replied=reply)

    def _told(self, read: Read) -> FetchingFlow[None]:
        said = read.reply
        if said.action is BrowseAction.RETRIEVE:
            return
        yield from self.tell(
            EventKind.PIECE,
            ACTIONS[said.action],
            frame=read.piece.frame,
            text=self.kept(said),
            reasoning=said.reasoning,
            ask=read.ask,
            reply=read.replied,
        )

    def kept(self, said: PieceReply) -> str:
        """Returns the text of a reply within its limit, and marked where it was cut."""
        if said.action is BrowseAction.ANSWER or not said.text:
            return said.text
        is_merge = said.action is BrowseAction.MERGE
        limit = self.prompts.notes_tokens if is_merge else self.prompts.note_tokens
        return self.prompts.held_to(said.text, limit)

    def note(self, read: Read) -> Note:
        """Returns what a reply extracted, with the place in its piece that it rests on."""
        text = self.kept(read.reply)
        spans = read.spans or (best_span(text, read.piece.parts, around=self.prompts.query),)
        return self.noted(text, spans, (read.piece.frame.number,))

    def shown(self, notes: Iterable[Note]) -> list[str]:
        """Returns notes as prompts show them."""
        return [
            noted(
                note.text,
                min(self.frame(one).from_position for one in note.pieces),
                max(self.frame(one).to_position for one in note.pieces),
            )
            for note in notes
        ]

    def noted(self, text: str, spans: Iterable[Span], pieces: Iterable[int]) -> Note:
        """Returns a note from these pieces, with the places that its words are from."""
        return Note(
            text=text,
            spans=best_fitting(text, tuple(dict.fromkeys(spans)), MAX_NOTE_SPANS),
            pieces=tuple(sorted(set(pieces))),
            cost=self.prompts.note_cost(text),
        )


def grouped(costs: Sequence[int], free: int) -> list[list[int]]:
    """Numbers of the costs from 0, in runs of at most `free` together; one at least in each."""
    groups: list[list[int]] = []
    left = 0
    for number, cost in enumerate(costs):
        if not groups or cost > left:
            groups.append([])
            left = free
        groups[-1].append(number)
        left -= cost
    return groups
