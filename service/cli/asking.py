"""`palimpsest ask`: questions to memories and to the log."""

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated, Any

import typer

import palimpsest
from palimpsest import TrajectoryEvent, values
from palimpsest.answer_values import Event
from service.cli.answers import (
    Asked,
    Resume,
    SchemaFile,
    Stream,
    Written,
    all_of,
    check_resumed,
    response_schema,
    said,
    show_value,
    value_json,
)
from service.cli.browsing import (
    OF_LOG,
    Actions,
    Model,
    Order,
    Pieces,
    ReaderName,
    Rerank,
    Way,
    Window,
    asked_of,
    settings_of,
    who_reads,
)
from service.cli.explaining import LiveDrawing, event_json, statistics_json, summary
from service.cli.lines import positions
from service.cli.output import cut, say, show, show_json
from service.cli.talk import (
    DAY,
    DEFAULT_ADDRESS,
    DEFAULT_NAME,
    Address,
    After,
    Json,
    SessionName,
    run,
    token_of,
)

#: Of a citation's excerpt on a line, in characters: all of it, for what counts may come late.
EXCERPT_CHARACTERS = 500
#: What the proto allows.
MAX_HYBRID_LEAVES = 32
MAX_BEAM = 8
MAX_CALLS = 10_000


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(ask)


def ask(
    query: Annotated[str, typer.Argument(help="The question.", show_default=False)] = "",
    session: SessionName = DEFAULT_NAME,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            "-m",
            help="The memory; default: none, and 'default' where --reader needs one.",
        ),
    ] = None,
    after: After = None,
    applied: Annotated[bool, typer.Option(help="Wait until the whole log is applied.")] = False,
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
    reader: ReaderName = None,
    browse: Way = "auto",
    actions: Actions = "",
    window: Window = 0,
    pieces: Pieces = 0,
    order: Order = "auto",
    rerank: Rerank = False,
    model: Model = "",
    schema: SchemaFile = "",
    stream: Stream = False,
    resume: Resume = "",
    explain: Annotated[
        bool, typer.Option("--explain", help="Draw the way to the answer as it is gone.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, max=DAY, help="Seconds to wait.")] = 60.0,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Ask a session a question; the answer comes with the positions it rests on.

    Without --memory and --reader it is chosen who answers: a memory, or a reader of the log.
    A tree is navigated, from its root down to the leaf that answers, and so is a state
    memory with --navigate, --hybrid, --beam or --max-calls; otherwise that answers from its
    working context. With --reader dciso the log itself is browsed, with whole it is read in
    one prompt, and auto chooses. With --explain the way is drawn; with --json too, its events
    are in the JSON.
    """
    reads_log = who_reads(memory, reader) in OF_LOG
    browsing = settings_of(
        browse=browse,
        actions=actions,
        window=window,
        pieces=pieces,
        order=order,
        rerank=rerank,
        max_calls=max_calls if reads_log else 0,
    )
    wanted: dict[str, Any] = {
        "after": token_of(after, applied),
        "fully_applied": applied,
        "options": option or (),
        "hybrid_leaves": hybrid,
        "beam": beam,
        "max_calls": 0 if reads_log else max_calls,
        "navigate": navigate,
        "response_schema": response_schema(schema),
        "stream": stream,
    }
    who = {"memory": memory, "reader": reader, "model": model, "browsing": browsing}
    check_resumed(query, resume, wanted | who)
    asked_of_whom = asked_of(memory, reader, model, browsing)

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            told = client.session(session)
            asked = (await told.answer(resume)).query if resume else query

            async def answer(on_event: Callable[[Event], None]) -> values.Answer:
                if resume:
                    return await told.resume_answer(resume, on_event=on_event, timeout=timeout)
                return await told.ask(
                    query, on_event=on_event, timeout=timeout, **asked_of_whom, **wanted
                )

            with Asked(resume).interrupted(session) as note:
                found = await _hear(asked, answer, note, explain=explain, as_json=as_json)
            if schema and found.no_answer == "unreadable":
                say("there is no JSON: what the model wrote does not fit the schema")

    run(work())


async def _hear(
    query: str,
    ask: Callable[[Callable[[Event], None]], Awaitable[values.Answer]],
    note: Callable[[Event], None],
    *,
    explain: bool,
    as_json: bool,
) -> values.Answer:
    """Shows what is told of a question, and the answer, which it returns."""
    drawing, written = LiveDrawing(query), Written()
    drawn = explain and not as_json
    hear = _hearing(drawing.hear if drawn else drawing.events.append)
    with drawing if drawn else nullcontext():
        answer = await ask(all_of(note, hear, *(() if explain or as_json else (written.hear,))))
    if as_json:
        told = {"events": [event_json(one) for one in drawing.events]} if explain else {}
        show_json({**answer_json(answer), **told})
        return answer
    written.end(answer)
    show_below(answer)
    if explain and not drawing.events:
        say(f"memory {answer.memory!r} was not navigated: there is no way to explain")
    elif explain and answer.statistics is not None:
        show(f"  {summary(answer.statistics)}")
    return answer


def _hearing(hear: Callable[[TrajectoryEvent], None]) -> Callable[[Event], None]:
    def heard(event: Event) -> None:
        if isinstance(event, values.Waiting):
            say(f"waiting: applied {event.applied_position} of {event.wanted_position}")
        elif isinstance(event, TrajectoryEvent):
            hear(event)

    return heard


def answer_json(answer: values.Answer) -> dict[str, Any]:
    """An answer as plain JSON."""
    told: dict[str, Any] = {
        "query": answer.query,
        "text": answer.text,
        "citations": [_citation_json(cited) for cited in answer.citations],
        "revision": answer.revision,
        "applied_position": answer.applied_position,
        "model": answer.model,
        "answer_id": answer.answer_id,
        "no_answer": answer.no_answer,
        "failure": answer.failure,
        "guessed": answer.guessed,
        "truncated": answer.truncated,
        "left_out": answer.left_out,
        "losses": [asdict(loss) for loss in answer.losses],
    }
    told |= value_json(answer)
    if answer.statistics is not None:
        told["statistics"] = statistics_json(answer.statistics)
    return told


def _citation_json(cited: values.Citation) -> dict[str, Any]:
    told = {
        "position": cited.position,
        "path": cited.path,
        "revision": cited.revision,
        "excerpt": cited.excerpt,
    }
    if cited.to_character:
        told["from_character"] = cited.from_character
        told["to_character"] = cited.to_character
    if cited.node_id:
        told["node_id"] = cited.node_id
    if cited.to_position:
        told["from_position"] = cited.from_position
        told["to_position"] = cited.to_position
    return told


def show_answer(answer: values.Answer) -> None:
    """An answer for people."""
    show(said(answer))
    show_below(answer)


def show_below(answer: values.Answer) -> None:
    """What stands under an answer's text."""
    show_value(answer)
    for cited in answer.citations:
        if cited.node_id:
            where = positions(cited.from_position - 1, cited.to_position)
            excerpt = cut(cited.excerpt, EXCERPT_CHARACTERS)
            # Where nothing was navigated it is the state vector that brought it.
            brought = "leaf" if answer.statistics is not None else "vector"
            if cited.node_id.startswith("p."):
                brought = "piece"
            show(f"  [{cited.position}] {brought} {cited.node_id} {where}: {excerpt}")
        elif cited.path:
            show(f"  [{cited.position}] {cited.path}")
        else:
            show(f"  [{cited.position}] {cut(cited.excerpt, EXCERPT_CHARACTERS)}")
    read = f"at revision {answer.revision}"
    if not (answer.memory or (answer.choice is not None and answer.choice.memory)):
        read = f"from the log up to position {answer.applied_position}"
    if answer.truncated:
        show("  cut off: the model's reply reached its bound before its end")
    if answer.left_out is not None:
        first, last = answer.left_out
        show(f"  not gone through: {positions(first - 1, last)}, more text than a reader may hold")
    show(f"  by {answer.model} {read}{_note(answer)}")
    for loss in answer.losses:
        show(f"  memory {answer.memory}: {loss.message}")


def _note(answer: values.Answer) -> str:
    if not answer.model.startswith("offline/"):
        return ""
    if answer.no_answer is not None or answer.guessed:
        return "; no language model"
    of_memory = answer.statistics is None and answer.memory
    of = "memory" if of_memory else "text"
    return f"; no language model: sentences of the {of}, word for word"
