"""Questions that read the log itself: their options, and what browsing did in words."""

from typing import Annotated, Any, Literal

import typer

from palimpsest import TrajectoryEvent
from palimpsest.answer_values import BrowseAction, BrowseSettings, Reader
from service.cli.lines import positions
from service.cli.output import CommandError, cut
from service.cli.talk import DEFAULT_NAME

#: What the proto allows.
MAX_WINDOW = 1_000_000
MAX_PIECES = 100
#: Readers that read the log, or choose: they need no memory.
OF_LOG = frozenset({"dciso", "whole", "auto"})
#: Of what was extracted, on a line, in characters.
SAID_CHARACTERS = 120
#: Pieces that a line names.
NAMED_PIECES = 12

ACTIONS: tuple[BrowseAction, ...] = (
    "task_understanding",
    "retrieve",
    "move",
    "append",
    "merge",
    "answer",
    "aggregation",
)

ReaderName = Annotated[
    Literal["prism", "memwalker", "pcc", "dciso", "whole", "auto"] | None,
    typer.Option(
        help="Who reads; default: the one of the memory's kind, without --memory auto, who chooses."
    ),
]
Way = Annotated[
    Literal["auto", "dynamic", "rank", "carry", "independent", "scan", "random"],
    typer.Option("--browse", help="Browsing: how the pieces of the log are read."),
]
Actions = Annotated[
    str,
    typer.Option(help=f"Browsing: what may be done, with commas: {', '.join(ACTIONS)}."),
]
Window = Annotated[
    int,
    typer.Option(
        min=0, max=MAX_WINDOW, help="Browsing: tokens of a prompt with its reply; 0: 4,096."
    ),
]
Pieces = Annotated[
    int,
    typer.Option(min=0, max=MAX_PIECES, help="Browsing: pieces that retrieval names; 0: 8."),
]
Order = Annotated[
    Literal["auto", "forward", "backward"],
    typer.Option(help="Browsing: the order of reading; backward: the newest first."),
]
Rerank = Annotated[
    bool, typer.Option("--rerank", help="Browsing: let the model order what retrieval names.")
]
Model = Annotated[
    str, typer.Option(help="Readers of the log: the model, as provider/name.", metavar="MODEL")
]


def who_reads(memory: str | None, reader: Reader | None) -> Reader | None:
    """The reader; None: the one of the memory's kind. Nobody said anything: it is chosen."""
    return reader if reader or memory else "auto"


def settings_of(
    *,
    browse: Any,
    actions: str,
    window: int,
    pieces: int,
    order: Any,
    rerank: bool,
    max_calls: int,
) -> BrowseSettings | None:
    """How to browse; None when nothing of it is said. Raises CommandError."""
    named = tuple(one.strip() for one in actions.split(",") if one.strip())
    allowed = tuple(one for one in ACTIONS if one in named)
    unknown = sorted(set(named) - set(ACTIONS))
    if unknown:
        raise CommandError(f"--actions: {unknown[0]!r} is none of {', '.join(ACTIONS)}")
    if actions and not named:
        # Sent as nothing it would allow everything.
        raise CommandError("--actions names none")
    settings = BrowseSettings(
        option=browse,
        actions=allowed,
        order=order,
        window_tokens=window,
        pieces=pieces,
        max_calls=max_calls,
        rerank=rerank,
    )
    return None if settings == BrowseSettings() else settings


def asked_of(
    memory: str | None, reader: Reader | None, model: str, browsing: BrowseSettings | None
) -> dict[str, Any]:
    """What a question says about who reads what; "" is no memory. Raises CommandError."""
    reader = who_reads(memory, reader)
    reads_log = reader in OF_LOG
    if browsing is not None and reader not in ("dciso", "auto"):
        raise CommandError("options for browsing need --reader dciso or auto")
    if model and not reads_log:
        raise CommandError("--model needs --reader dciso, whole or auto")
    name = memory or ("" if reads_log else DEFAULT_NAME)
    return {"memory": name, "reader": reader, "model": model, "browsing": browsing}


def browse_line(event: TrajectoryEvent) -> str:
    """What a reader of the log did, on a line; empty for what other readers do."""
    text = cut(event.text, SAID_CHARACTERS)
    said = cut(event.reasoning, SAID_CHARACTERS)
    why = f" — {said}" if said else ""
    match event.kind:
        case "choice":
            return f"chose {text}{why}"
        case "understanding":
            if event.action == "invalid":
                return f"? not understood (try {event.attempt}), {text}"
            return f"reads by {', '.join(event.target_ids)}, looks for: {text}{why}"
        case "piece":
            number = event.node_id.removeprefix("p.")
            where = positions(event.from_position - 1, event.to_position)
            # One that was read together with others in the prompt of the answer.
            done = "read" if event.action == "none" else _done(event, text)
            return f"piece {number} {where}: {done}{why}"
        case "aggregation":
            return f"of {_named(event.shown_ids)}: {_done(event, text)}"
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
            return f"retrieve {_named(event.target_ids) or 'nothing'} for: {text}"
        case "answer":
            return f"= {text}"
        case "aggregate":
            return f"aggregate: {text}" if text else "aggregate"
        case "invalid":
            return f"? no action (try {event.attempt}), {text}"
    return "nothing"


def _named(ids: tuple[str, ...]) -> str:
    more = f" and {len(ids) - NAMED_PIECES} more" if len(ids) > NAMED_PIECES else ""
    return ", ".join(ids[:NAMED_PIECES]) + more
