"""`palimpsest ask`: questions to memories and to the log."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import typer

from palimpsest import (
    Answer,
    AskEvent,
    BrowseSettings,
    Reading,
    Session,
    TextPiece,
    TrajectoryEvent,
    Waiting,
)
from service.cli.answer import answer_json, said, show_below
from service.cli.command import DEFAULT_NAME, Freshness, Json, Labels, Timeout, command
from service.cli.drawing import LiveDrawing, summary
from service.cli.files import read_text
from service.cli.output import CommandError, plain_json, say, show, show_json
from service.cli.search import Occurred

#: What the proto allows.
MAX_HYBRID_LEAVES = 32
MAX_BEAM = 8
MAX_CALLS = 10_000
MAX_WINDOW = 1_000_000
MAX_PIECES = 100
#: Readers that read the log, or choose: they need no memory.
OF_LOG = frozenset({"dciso", "whole", "auto"})

Reader = Literal["prism", "memwalker", "pcc", "dciso", "whole", "auto"]
BrowseAction = Literal[
    "task_understanding", "retrieve", "move", "append", "merge", "answer", "aggregation"
]
ACTIONS: tuple[BrowseAction, ...] = get_args(BrowseAction)


@dataclass(frozen=True, slots=True)
class BrowseOptions:
    """Options for readers of the log."""

    browse: Annotated[
        Literal["auto", "dynamic", "rank", "carry", "independent", "scan"],
        typer.Option("--browse", help="Browsing: how the pieces of the log are read."),
    ] = "auto"
    actions: Annotated[
        str,
        typer.Option(help=f"Browsing: what may be done, with commas: {', '.join(ACTIONS)}."),
    ] = ""
    window: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_WINDOW, help="Browsing: tokens of a prompt with its reply; 0: 4,096."
        ),
    ] = 0
    pieces: Annotated[
        int,
        typer.Option(min=0, max=MAX_PIECES, help="Browsing: pieces that retrieval names; 0: 8."),
    ] = 0
    order: Annotated[
        Literal["auto", "forward", "backward"],
        typer.Option(help="Browsing: the order of reading; backward: the newest first."),
    ] = "auto"
    rerank: Annotated[
        bool,
        typer.Option("--rerank", help="Browsing: let the model order what retrieval names."),
    ] = False

    def settings(self, max_calls: int = 0) -> BrowseSettings | None:
        """Returns how to browse; None when no option was given. Raises CommandError."""
        named = tuple(one.strip() for one in self.actions.split(",") if one.strip())
        unknown = sorted(set(named) - set(ACTIONS))
        if unknown:
            raise CommandError(f"--actions: {unknown[0]!r} is none of {', '.join(ACTIONS)}")
        if self.actions and not named:
            # An empty list would allow everything.
            raise CommandError("--actions names none")
        settings = BrowseSettings(
            strategy=self.browse,
            actions=tuple(one for one in ACTIONS if one in named),
            order=self.order,
            window_tokens=self.window,
            pieces=self.pieces,
            max_calls=max_calls,
            rerank=self.rerank,
        )
        return None if settings == BrowseSettings() else settings


def register(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "ask", ask)


async def ask(
    session: Session,
    freshness: Freshness,
    browse: BrowseOptions,
    labels: Labels,
    occurred: Occurred,
    query: Annotated[str, typer.Argument(help="The question.", show_default=False)] = "",
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            "-m",
            help="The memory; default: none, and 'default' where --reader needs one.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="One of the answers to choose from; give it for each, 2 to 26 times."),
    ] = None,
    hybrid: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_HYBRID_LEAVES, help="Navigating: begin with so many leaves by retrieval."
        ),
    ] = 0,
    beam: Annotated[
        int,
        typer.Option(min=0, max=MAX_BEAM, help="Navigating: explore so many nodes at once; 0: 1."),
    ] = 0,
    max_calls: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_CALLS,
            help="Model calls that it may cost; 0: 50 of navigating, 1,000 of browsing.",
        ),
    ] = 0,
    navigate: Annotated[
        bool,
        typer.Option(
            "--navigate", help="State memories: look into the vectors, down to the steps."
        ),
    ] = False,
    reader: Annotated[
        Reader | None,
        typer.Option(
            help="The reader; default: the one of the memory's kind, without --memory auto,"
            " which chooses."
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(help="Readers of the log: the model, as provider/name.", metavar="MODEL"),
    ] = "",
    schema: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="A file with JSON Schema for the answer; - for standard input.",
        ),
    ] = "",
    stream: Annotated[
        bool, typer.Option("--stream", help="Print the answer's text as it is written.")
    ] = False,
    resume: Annotated[
        str,
        typer.Option(
            metavar="ANSWER", help="Wait for this answer instead of asking a new question."
        ),
    ] = "",
    explain: Annotated[
        bool, typer.Option("--explain", help="Draw the steps to the answer while they happen.")
    ] = False,
    timeout: Timeout = 60.0,
    as_json: Json = False,
) -> None:
    """Ask a session a question; the answer cites positions of the log.

    To let the service choose a memory or a reader of the log, give neither --memory nor --reader.
    A tree is navigated, from its root down to the leaf that answers, and so is a state
    memory with --navigate, --hybrid, --beam or --max-calls; otherwise that answers from its
    working context. With --reader dciso the log itself is browsed, with whole it is read in
    one prompt, and auto chooses. --thread, --exclude-thread, --source, --occurred-since and
    --occurred-until limit what is cited, and what is read of the log. With --explain the steps are
    drawn; with --json too, their events are in the JSON.
    """
    reads_log = _reader(memory, reader) in OF_LOG
    browsing = browse.settings(max_calls if reads_log else 0)
    wanted: dict[str, Any] = {
        **freshness.wanted(),
        "options": option or (),
        "hybrid_leaves": hybrid,
        "beam": beam,
        "max_calls": 0 if reads_log else max_calls,
        "navigate": navigate,
        "response_schema": read_text(schema) if schema else None,
        "stream": stream,
        **labels.wanted(),
        **occurred.wanted(),
    }
    reading = {"memory": memory, "reader": reader, "model": model, "browsing": browsing}
    _check_resumed(query, resume, any((wanted | reading).values()))
    wanted |= question_options(memory, reader, model, browsing)
    asked = (await session.answer(resume)).query if resume else query
    drawing, written, known = LiveDrawing(asked), Written(), AnswerInProgress(resume)
    is_drawn = explain and not as_json

    def hear(event: AskEvent) -> None:
        known.hear(event)
        if isinstance(event, Waiting):
            say(f"waiting: applied {event.applied_position} of {event.position}")
        elif isinstance(event, TrajectoryEvent):
            drawing.hear(event) if is_drawn else drawing.events.append(event)
        elif not (explain or as_json):
            written.hear(event)

    with known.interrupted(session.id), drawing if is_drawn else nullcontext():
        if resume:
            answer = await session.resume_answer(resume, on_event=hear, timeout=timeout)
        else:
            answer = await session.ask(query, on_event=hear, timeout=timeout, **wanted)
    if as_json:
        events = {"events": plain_json(drawing.events)} if explain else {}
        show_json({**answer_json(answer), **events})
    else:
        written.end(answer)
        show_below(answer)
        if explain and not drawing.events:
            say(f"memory {answer.memory!r} was not navigated: there is no way to explain")
        elif explain and answer.statistics is not None:
            show(f"  {summary(answer.statistics)}")
    if schema and answer.no_answer == "unreadable":
        say("there is no JSON: what the model wrote does not fit the schema")


def _reader(memory: str | None, reader: Reader | None) -> Reader | None:
    """Returns the reader; None: the one of the memory's kind. Without either it is chosen."""
    return reader if reader or memory else "auto"


def _check_resumed(query: str, resume: str, is_more_given: bool) -> None:
    """Raises CommandError where a question is missing, or one too many."""
    if resume and query:
        raise CommandError("give a question, or --resume with an answer's id, not both")
    if resume and is_more_given:
        raise CommandError("--resume waits for an answer as it was asked for")
    if not resume and not query:
        raise CommandError("give a question: the query is empty")


def question_options(
    memory: str | None, reader: Reader | None, model: str, browsing: BrowseSettings | None
) -> dict[str, Any]:
    """Returns what a question says about its reader; "" is no memory. Raises CommandError."""
    reader = _reader(memory, reader)
    reads_log = reader in OF_LOG
    if browsing is not None and reader not in ("dciso", "auto"):
        raise CommandError("options for browsing need --reader dciso or auto")
    if model and not reads_log:
        raise CommandError("--model needs --reader dciso, whole or auto")
    name = memory or ("" if reads_log else DEFAULT_NAME)
    return {"memory": name, "reader": reader, "model": model, "browsing": browsing}


class Written:
    """Prints an answer's text as it arrives, and the rest of it at the end."""

    def __init__(self) -> None:
        self._printed = ""

    def hear(self, event: AskEvent) -> None:
        """Prints a piece of text."""
        if not isinstance(event, TextPiece):
            return
        if event.restarts:
            if self._printed:
                show()
                say("the model was asked anew")
            self._printed = ""
        self._printed += event.text
        show(event.text, end="")

    def end(self, answer: Answer) -> None:
        """Prints what has not arrived before; where the text is another one, all of it."""
        text = said(answer)
        if answer.guessed and self._printed == answer.text:
            text = f"{answer.text} (a guess)"
        if self._printed and not text.startswith(self._printed):
            show()
            self._printed = ""
        show(text[len(self._printed) :])


class AnswerInProgress:
    """Remembers the id of the answer in progress."""

    def __init__(self, answer_id: str = "") -> None:
        self._answer_id = answer_id

    def hear(self, event: AskEvent) -> None:
        """Takes the id from the first event that has it."""
        if isinstance(event, Reading):
            self._answer_id = event.answer

    @contextmanager
    def interrupted(self, session: str) -> Iterator[None]:
        """Prints at Ctrl-C how to continue or end the answer."""
        try:
            yield
        except asyncio.CancelledError:
            if self._answer_id:
                say(
                    f"the answer is left: `palimpsest ask --resume {self._answer_id}"
                    f" -s {session}` goes on with it, `palimpsest answer cancel {self._answer_id}"
                    f" -s {session}` ends it"
                )
            raise
