"""A small tree and a scripted model, for tests of navigation."""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from service.domain.access.trust import Trust
from service.domain.answers.trajectory import (
    Emit,
    Event,
)
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.tree.navigation import TreeQuestion, navigate
from service.domain.tree.nodes import BestLeaves, Children, LeafText, NodeView, Text, TextOffset
from service.domain.tree.recording import Navigation
from service.domain.tree.spec import TreeSpec

KEY = b"a key that nobody outside knows"
SPEC = TreeSpec()

T = TypeVar("T")
#: A tree as text: a leaf's text, or the children.
Shape = str | Sequence["Shape"]


@dataclass
class Tree:
    """A tree as tests write it down: ids are paths, "r" for the root, "r.0" for its first."""

    shape: Shape
    views: dict[str, NodeView] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    trusts: dict[str, Trust] = field(default_factory=dict)
    best: tuple[str, ...] = ()
    stored: bool = True
    about: str = "about"
    lookups: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._add("r", self.shape, [0])

    def _add(self, name: str, shape: Shape, position: list[int]) -> int:
        first = position[0] + 1
        children: list[str] = []
        level = 0
        if isinstance(shape, str):
            position[0] += 1
            self.texts[name] = shape
            tokens = estimate_tokens(shape)
        else:
            children = [f"{name}.{number}" for number in range(len(shape))]
            parts = zip(children, shape, strict=True)
            level = 1 + max(self._add(child, part, position) for child, part in parts)
            tokens = sum(self.views[child].text_tokens for child in children)
        self.views[name] = NodeView(
            node_id=name,
            level=level,
            summary=f"{self.about} {name}",
            children=tuple(children),
            start=TextOffset(first),
            end=TextOffset(position[0] + 1),
            text_tokens=tokens,
            is_stored=self.stored,
        )
        return level

    @property
    def root(self) -> NodeView:
        return self.views["r"]

    def path(self, name: str) -> tuple[NodeView, ...]:
        steps = name.split(".")
        return tuple(self.views[".".join(steps[:end])] for end in range(2, len(steps) + 1))

    def look(self, lookup: object) -> Any:
        """Returns what navigation looks up."""
        self.lookups.append(lookup)
        match lookup:
            case Children(node_id=name):
                return tuple(self.views[child] for child in self.views[name].children)
            case Text(node_id=name):
                return LeafText(text=self.texts[name], trust=self.trusts.get(name, Trust.TRUSTED))
            case BestLeaves(count=count):
                return tuple(self.path(name) for name in self.best[:count])
        raise AssertionError(f"an unknown look-up: {lookup}")


@dataclass
class Run:
    """The result of a navigation, and its events."""

    result: Navigation
    events: list[Event]
    asks: list[ModelRequest]
    #: How many asks each batch of asks had.
    batches: list[int]

    def moves(self) -> list[tuple[str, str]]:
        """Node and action of each event."""
        return [(event.node_id or event.kind.value, event.action.value) for event in self.events]


#: The reply to a prompt.
Model = Callable[[ModelRequest], str | ModelReply]


def play(flow: Generator[Sequence[Any], Sequence[Any], T], call: Callable[[Any], Any]) -> T:
    """Runs a flow as the driver does, one ask after the other."""
    try:
        batch = next(flow)
        while True:
            batch = flow.send([call(ask) for ask in batch])
    except StopIteration as end:
        result: T = end.value
        return result


def run(
    tree: Tree,
    model: Model,
    *,
    tokens: tuple[int, int | None, int] = (10, None, 2),
    heard: list[Event] | None = None,
    **arguments: Any,
) -> Run:
    """Navigates `tree`; arguments are those of the question or of `navigate`.

    `heard` gets the events, for a run that ends with an error.
    """
    events: list[Event] = [] if heard is None else heard
    asks: list[ModelRequest] = []
    batches: list[int] = []

    def call(ask: Any) -> Any:
        if isinstance(ask, ModelRequest):
            asks.append(ask)
            sent, cached, got = tokens
            said = model(ask)
            return replace(
                ModelReply(text=said, model="m") if isinstance(said, str) else said,
                input_tokens=sent,
                cached_tokens=cached,
                output_tokens=got,
            )
        if isinstance(ask, Emit):
            events.append(ask.event)
            return None
        return tree.look(ask)

    def counted() -> Generator[Sequence[Any], Sequence[Any], Navigation]:
        flow = start(tree, **arguments)
        sent: Sequence[Any] | None = None
        while True:
            try:
                batch = flow.send(sent) if sent is not None else next(flow)
            except StopIteration as end:
                result: Navigation = end.value
                return result
            if isinstance(batch[0], ModelRequest):
                batches.append(len(batch))
            sent = yield batch

    return Run(play(counted(), call), events, asks, batches)


def start(tree: Tree, **arguments: Any) -> Generator[Sequence[Any], Sequence[Any], Navigation]:
    """Yields the flow of a navigation."""
    names = TreeQuestion.__dataclass_fields__
    question = {name: arguments.pop(name) for name in list(arguments) if name in names}
    defaults: dict[str, Any] = {
        "spec": SPEC,
        "text_tokens": 1000,
        "window_tokens": 8192,
        "marker_key": KEY,
        "count": estimate_tokens,
    }
    flow: Generator[Sequence[Any], Sequence[Any], Navigation] = navigate(
        TreeQuestion(**{"query": "Who?"} | question), tree.root, **defaults | arguments
    )
    return flow


def scripted(*replies: str | ModelReply) -> Model:
    """Returns a model that says these, one after the other."""
    left = iter(replies)
    return lambda _: next(left)


def down(*numbers: int) -> str:
    """Returns a triage reply."""
    return f"Reasoning: it fits\nAction: {', '.join(map(str, numbers))}"


UP = "Reasoning: it does not fit\nAction: -1"


def says(answer: str) -> str:
    """Returns a leaf reply."""
    return f"Reasoning: it is there\nAction: -2\nAnswer: {answer}"


def leaves_of(asks: Iterable[ModelRequest]) -> list[ModelRequest]:
    """Returns the leaf prompts among these."""
    return [ask for ask in asks if ask.template.startswith("tree.leaf")]


def notes(got: Run) -> list[str]:
    """Returns what is under [NOTES] in each prompt."""
    found = []
    for ask in got.asks:
        _, _, behind = ask.text.partition("[NOTES]\n<<<data")
        found.append(behind.partition("\n")[2].partition("\n>>>data")[0])
    return found
