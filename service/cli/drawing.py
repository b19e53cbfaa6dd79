"""A trajectory as a drawing and as lines, and the figures of navigations as plain JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.tree import Tree

from palimpsest import NavigationStatistics, TrajectoryEvent
from service.cli.output import counted, cut, escaped, plain_json, range_text

#: Characters of the model's words on a line.
SAID_CHARACTERS = 120
#: More than any line of a drawing has.
LINE_CHARACTERS = 1000
#: Nodes that a line names.
NAMED_NODES = 12

#: Why there is no answer, after "no answer: ".
NO_ANSWER = {
    "unreadable": "three replies in a row made no sense",
    "not_found": "nothing that was read holds it",
    "step_limit": "the model calls are used up",
    "empty": "there is no text yet",
}


def draw(query: str, events: Sequence[TrajectoryEvent]) -> Tree:
    """Returns the path of a navigation in its tree, or of a browsing in its log, as a drawing."""
    drawing = _Drawing(Tree(escaped(cut(query, SAID_CHARACTERS))))
    for event in events:
        drawing.add(event)
    return drawing.root


@dataclass(slots=True)
class _Drawing:
    root: Tree
    #: By node: its own branch, and the branch of its children.
    branches: dict[str, Tree] = field(default_factory=dict)
    places: dict[str, Tree] = field(default_factory=dict)
    #: Inner nodes whose children were named.
    seen: set[str] = field(default_factory=set)

    def add(self, event: TrajectoryEvent) -> None:
        if event.kind == "retrieval":
            found = named(event.shown) or "no leaf"
            self._place(event.shown, self.root.add(escaped(f"retrieval names {found}")))
            return
        if event.kind == "end":
            if event.action == "none":
                why = NO_ANSWER.get(event.text, event.text)
                self.root.add(escaped(f"no answer: {why}"))
            return
        if read := browse_line(event):
            self.root.add(escaped(f"{read}{_tokens(event)}"))
            return
        branch = self._branch(event) if event.node else self.root
        if event.kind == "triage" and event.node not in self.seen:
            self.seen.add(event.node)
            branch.add(escaped(f"sees {named(event.shown)}"))
        branch.add(escaped(line(event)))
        self._place(event.shown if event.kind == "triage" else (), branch)

    def _branch(self, event: TrajectoryEvent) -> Tree:
        """Returns where a node is drawn: below the one that showed it."""
        branch = self.branches.get(event.node)
        if branch is None:
            where = range_text(event.positions)
            above = self.places.get(event.node, self.root)
            branch = above.add(escaped(f"{event.node} {where}".rstrip()))
            self.branches[event.node] = branch
        return branch

    def _place(self, children: Sequence[str], branch: Tree) -> None:
        for child in children:
            self.places.setdefault(child, branch)


def line(event: TrajectoryEvent) -> str:
    """Returns what happened at a node, on a line."""
    said = cut(event.reasoning, SAID_CHARACTERS)
    why = f" — {said}" if said else ""
    return f"{_move(event)}{why}{_tokens(event)}"


def _move(event: TrajectoryEvent) -> str:
    text = cut(event.text, SAID_CHARACTERS)
    match event.kind, event.action:
        case "working_memory", _:
            return f"remembers: {text}"
        case "merge", "answer":
            return f"= of the answers of {named(event.shown)}: {text}"
        case "merge", "revert":
            return f"↑ {named(event.shown)} do not say it together"
        case _, "enter":
            return f"→ {named(event.targets)}"
        case _, "revert":
            return "↑ back"
        case _, "answer":
            return f"= {text}"
        case _, "invalid":
            return f"? no action (try {event.attempt}), {text}"
        case _, "none":
            return f"→ {named(event.targets)}, the only way"
    return f"{event.kind} {event.action}"


def _tokens(event: TrajectoryEvent) -> str:
    if not (event.input_tokens or event.output_tokens):
        return ""
    cached = f", {event.cached_tokens:,} cached" if event.cached_tokens else ""
    return f" ({event.input_tokens:,} + {event.output_tokens:,} tokens{cached})"


def named(ids: Sequence[str]) -> str:
    """Returns nodes on a line."""
    more = f" and {len(ids) - NAMED_NODES} more" if len(ids) > NAMED_NODES else ""
    return ", ".join(ids[:NAMED_NODES]) + more


def summary(statistics: NavigationStatistics) -> str:
    """Returns the figures of a navigation, on a line."""
    share = statistics.read_share
    of_text = "" if share is None else f", {share:.0%} of the text"
    return (
        f"{counted(statistics.calls, 'call')},"
        f" {counted(statistics.leaves_read, 'leaf', 'leaves')} read,"
        f" went back {counted(statistics.reverts, 'time')};"
        f" {statistics.tokens:,} tokens{of_text}"
    )


def statistics_json(statistics: NavigationStatistics) -> dict[str, Any]:
    """Returns the figures of navigations as plain JSON; a ratio of nothing is null."""
    return {
        **plain_json(statistics),
        "stray_ratio": statistics.stray_ratio,
        "valid_action_rate": statistics.valid_action_rate,
        "read_share": statistics.read_share,
    }


def browse_line(event: TrajectoryEvent) -> str:
    """Returns what a reader of the log did, on a line; empty for what other readers do."""
    text = cut(event.text, SAID_CHARACTERS)
    said = cut(event.reasoning, SAID_CHARACTERS)
    why = f" — {said}" if said else ""
    match event.kind:
        case "choice":
            return f"chose {text}{why}"
        case "understanding":
            if event.action == "invalid":
                return f"? not understood (try {event.attempt}), {text}"
            return f"reads by {', '.join(event.targets)}, looks for: {text}{why}"
        case "piece":
            number = event.node.removeprefix("p.")
            where = range_text(event.positions)
            # One that was read together with others in the prompt of the answer.
            done = "read" if event.action == "none" else _done(event, text)
            return f"piece {number} {where}: {done}{why}"
        case "aggregation":
            return f"of {named(event.shown)}: {_done(event, text)}"
        case "shaping":
            bad = f"? not in the form (try {event.attempt}), {text}"
            return bad if event.action == "invalid" else "brought into the form"
    return ""


def _done(event: TrajectoryEvent, text: str) -> str:
    match event.action:
        case "append":
            return f"append: {text}"
        case "merge":
            return f"merge: {text}"
        case "move":
            return "move"
        case "retrieve":
            return f"retrieve {named(event.targets) or 'nothing'} for: {text}"
        case "answer":
            return f"= {text}"
        case "aggregate":
            return f"aggregate: {text}" if text else "aggregate"
        case "invalid":
            return f"? no action (try {event.attempt}), {text}"
    return "nothing"


def drawing_console() -> Console:
    """Returns standard output for drawings: wrapped on a terminal, else with lines as they are."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=LINE_CHARACTERS)


class LiveDrawing:
    """Draws a navigation while it happens, on a terminal; else once, at its end.

    Use it as a context manager.
    """

    def __init__(self, query: str, console: Console | None = None) -> None:
        self._query = query
        self._console = console or drawing_console()
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="ellipsis")
        self.events: list[TrajectoryEvent] = []

    def __enter__(self) -> "LiveDrawing":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            # A drawing that is taller than the terminal is shown as a whole at last.
            self._live.vertical_overflow = "visible"
            self._live.refresh()
            self._live.stop()
        elif self.events:
            self._console.print(draw(self._query, self.events))

    def hear(self, event: TrajectoryEvent) -> None:
        """Draws one more event."""
        self.events.append(event)
        if self._console.is_terminal:
            self._live.update(draw(self._query, self.events), refresh=True)
