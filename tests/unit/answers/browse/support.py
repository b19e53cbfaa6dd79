"""A small log and a scripted model, for tests of browsing."""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from service.domain.answers.browse.flow import browse
from service.domain.answers.browse.packing import PiecePacker, piece_of
from service.domain.answers.browse.pieces import (
    Browsed,
    BrowsePiece,
    Frame,
    RankPieces,
    ReadPiece,
)
from service.domain.answers.browse.spec import (
    ALL_ACTIONS,
    BrowseAction,
    BrowseOption,
    BrowseRequest,
)
from service.domain.answers.trajectory import Emit, Event
from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.domain.prompting.tokens import estimate_tokens

KEY = b"a key that nobody outside knows"
#: The reply to a prompt: its text, or all of it where it did not end by itself.
Model = Callable[[ModelRequest], str | ModelReply]

APPEND, MERGE, MOVE = BrowseAction.APPEND, BrowseAction.MERGE, BrowseAction.MOVE
RETRIEVE, ANSWER = BrowseAction.RETRIEVE, BrowseAction.ANSWER
AGGREGATION = BrowseAction.AGGREGATION
CLOSING = frozenset({ANSWER, AGGREGATION})
WITHOUT_UNDERSTANDING = ALL_ACTIONS - {BrowseAction.TASK_UNDERSTANDING}


def cut(text: str, tokens: int) -> int:
    """Returns the first piece of a text: so many tokens by the estimate, of ASCII."""
    return min(len(text), 4 * tokens)


@dataclass
class Log:
    """A log as tests write it down: the texts of its chunks, from position 1 on."""

    texts: Sequence[str]
    #: One piece for each chunk, unless a size is given.
    tokens: int | None = None
    #: What retrieval names.
    best: Sequence[int] = ()
    lookups: list[Any] = field(default_factory=list)
    #: How a size is counted, and what is too long is cut.
    count: Callable[[str], int] = estimate_tokens
    cut: Callable[[str, int], int] = cut

    @property
    def chunks(self) -> list[tuple[int, str]]:
        return list(enumerate(self.texts, 1))

    def frames(self) -> list[Frame]:
        if self.tokens is not None:
            packer = PiecePacker(self.tokens, count=self.count, cut=self.cut)
            return [*packer.feed(self.chunks), *packer.finish()]
        return [
            Frame(
                number=position,
                from_position=position,
                to_position=position,
                from_character=0,
                to_character=len(text),
                tokens=estimate_tokens(text) + 3,
            )
            for position, text in self.chunks
        ]

    def look_at(self, frame: Frame) -> BrowsePiece:
        held = self.texts[frame.from_position - 1 : frame.to_position]
        return piece_of(frame, enumerate(held, frame.from_position))

    def look(self, lookup: object, frames: Sequence[Frame]) -> Any:
        self.lookups.append(lookup)
        match lookup:
            case ReadPiece(number=number):
                return self.look_at(frames[number - 1])
            case RankPieces(count=count):
                best = self.best[:count]
                return tuple(frames[one - 1] for one in best if 1 <= one <= len(frames))
        raise AssertionError(f"an unknown look-up: {lookup}")


@dataclass
class Run:
    """The result of browsing, and its events."""

    result: Browsed
    events: list[Event]
    asks: list[ModelRequest]
    #: How many asks each batch of asks had.
    batches: list[int]

    def moves(self) -> list[tuple[str, str]]:
        """Piece, or the kind of the event, and the action of each event."""
        return [(event.node_id or event.kind.value, event.action.value) for event in self.events]


def request(
    option: BrowseOption = BrowseOption.AUTO,
    actions: Iterable[BrowseAction] = WITHOUT_UNDERSTANDING,
    **more: Any,
) -> BrowseRequest:
    return BrowseRequest(option=option, actions=frozenset(actions), **more)


def run(log: Log, model: Model, asked: BrowseRequest, **arguments: Any) -> Run:
    """Browses a log as the driver does."""
    settled: dict[str, Any] = {
        "query": "Who left?",
        "window_tokens": 100_000,
        "marker_key": KEY,
        "count": estimate_tokens,
    }
    held = log.frames()
    flow: Generator[Sequence[Any], Sequence[Any], Browsed] = browse(
        frames=held, request=asked, **settled | arguments
    )
    events: list[Event] = []
    asks: list[ModelRequest] = []
    batches: list[int] = []

    def reply(ask: Any) -> Any:
        if isinstance(ask, ModelRequest):
            asks.append(ask)
            said = model(ask)
            if isinstance(said, ModelReply):
                return said
            return ModelReply(text=said, model="m", input_tokens=10, output_tokens=2)
        if isinstance(ask, Emit):
            events.append(ask.event)
            return None
        return log.look(ask, held)

    try:
        batch = next(flow)
        while True:
            assert batch, "an empty batch asks nobody"
            if isinstance(batch[0], ModelRequest):
                batches.append(len(batch))
            batch = flow.send([reply(ask) for ask in batch])
    except StopIteration as end:
        return Run(end.value, events, asks, batches)


def scripted(*replies: str | ModelReply) -> Model:
    """Returns a model that says these, one after the other."""
    left = iter(replies)
    return lambda _: next(left)


def ended(end: End, text: str = "", said: str = "") -> ModelReply:
    """Returns a reply that ended so."""
    return ModelReply(text=text, model="m", end=end, said=said)


def does(action: str, text: str, *quotes: str) -> str:
    """Returns a reply that chooses an action."""
    return f"Action: {action}\n{says(text, *quotes)}"


def says(text: str, *quotes: str) -> str:
    """Returns a reply where nothing is to be chosen."""
    lines = "".join(f"{quote}\n" for quote in quotes)
    return f"Text: {text}\n" + (f"Quotes:\n{lines}" if quotes else "")


NULL = "Text: null\n"
