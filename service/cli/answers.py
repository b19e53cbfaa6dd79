"""Commands for stored answers, and how `palimpsest ask` hears one."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.table import Table

import palimpsest
from palimpsest import Answer, TextPiece
from palimpsest.answer_values import AnswerStatus, Event, Reading
from service.cli.output import CommandError, cut, escaped, say, show, show_json, show_table
from service.cli.talk import DEFAULT_ADDRESS, DEFAULT_NAME, Address, Json, SessionName, run
from service.cli.texts import read_text

#: Of a question, and of a text, in a list.
LISTED_CHARACTERS = 60
#: Answers that a list shows when nobody says how many.
LISTED_ANSWERS = 20

AnswerId = Annotated[
    str, typer.Argument(metavar="ANSWER", help="The answer's id, as `answers` lists it.")
]
SchemaFile = Annotated[
    str,
    typer.Option(
        "--schema",
        metavar="FILE",
        help="JSON Schema that the answer is to fit, too; - for standard input.",
    ),
]
Stream = Annotated[bool, typer.Option("--stream", help="Print the answer's text as it is written.")]
Resume = Annotated[
    str,
    typer.Option(
        "--resume", metavar="ANSWER", help="Wait on for an answer instead of asking for one."
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(answers)
    app.command()(cancel)
    app.command()(rate)


def answers(
    session: SessionName = DEFAULT_NAME,
    memory: Annotated[
        str, typer.Option("--memory", "-m", help="Only those that this memory was asked for.")
    ] = "",
    status: Annotated[AnswerStatus | None, typer.Option(help="Only those that are so far.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = LISTED_ANSWERS,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """List the answers of a session, newest first."""

    async def work() -> None:
        table = Table(box=None, pad_edge=False)
        # Whoever wants to go on with one needs all of its id.
        table.add_column("answer", no_wrap=True)
        for name in ("asked", "by", "status", "question"):
            table.add_column(name)
        shown = 0
        async with palimpsest.connect(address) as client:
            found = client.session(session).answers(memory=memory, status=status)
            async for answer in found:
                if as_json:
                    show_json(_listed_json(answer))
                table.add_row(*map(escaped, _listed(answer)))
                shown += 1
                if shown == limit:
                    break
        if not as_json:
            show_table(table)

    run(work())


def _listed(answer: Answer) -> tuple[str, ...]:
    rated = "" if answer.rating is None else (", good" if answer.rating.good else ", bad")
    what = ", no answer" if answer.no_answer else ", a guess" if answer.guessed else ""
    asked = answer.memory or answer.reader or ""
    return (
        answer.answer_id,
        f"{answer.created_at:%Y-%m-%d %H:%M:%S}",
        asked,
        answer.status + what + rated,
        cut(answer.query, LISTED_CHARACTERS),
    )


def _listed_json(answer: Answer) -> dict[str, Any]:
    return {
        "answer_id": answer.answer_id,
        "created_at": answer.created_at.isoformat(),
        "query": answer.query,
        "memory": answer.memory,
        "reader": answer.reader,
        "status": answer.status,
        "text": answer.text,
        "no_answer": answer.no_answer,
        "failure": answer.failure,
        "guessed": answer.guessed,
        "truncated": answer.truncated,
        "calls": answer.usage.calls,
        "cost_micro_usd": answer.usage.cost_micro_usd,
        "rating": None if answer.rating is None else _rating_json(answer.rating),
    }


def _rating_json(rating: palimpsest.Rating) -> dict[str, Any]:
    return {
        "good": rating.good,
        "comment": rating.comment,
        "expected": rating.expected,
        "rated_at": rating.rated_at.isoformat(),
    }


def cancel(
    answer_id: AnswerId,
    session: SessionName = DEFAULT_NAME,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """End the work on an answer; what was paid stays paid."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            answer = await client.session(session).cancel_answer(answer_id)
        if answer.status != "cancelled":
            raise CommandError(f"answer {answer_id} had ended before: it is {answer.status}")
        show(f"{answer_id} is cancelled")

    run(work())


def rate(
    answer_id: AnswerId,
    good: Annotated[
        bool | None, typer.Option("--good/--bad", help="Whether it was good.", show_default=False)
    ] = None,
    comment: Annotated[str, typer.Option(help="What there is to say about it.")] = "",
    expected: Annotated[str, typer.Option(help="What would have been right.")] = "",
    session: SessionName = DEFAULT_NAME,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Say whether a complete answer was good; `trajectories export` has it beside the moves."""
    if good is None:
        raise CommandError("give --good or --bad")

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            told = client.session(session)
            rating = await told.rate(answer_id, good=good, comment=comment, expected=expected)
        show(f"{answer_id} is rated {'good' if rating.good else 'bad'}")

    run(work())


def response_schema(name: str) -> str | None:
    """The text of a schema's file; None without a name. Raises CommandError."""
    return read_text(name) if name else None


def check_resumed(query: str, resume: str, also: dict[str, Any]) -> None:
    """Raises CommandError where a question is missing, or one too many."""
    if resume and query:
        raise CommandError("give a question, or --resume with an answer's id, not both")
    if resume and any(also.values()):
        raise CommandError("--resume waits for an answer as it was asked for")
    if not resume and not query:
        raise CommandError("give a question: the query is empty")


def said(answer: Answer) -> str:
    """An answer's text, or why there is none; a guess is called one."""
    text = answer.text or answer.failure
    return f"a guess: {text}" if answer.guessed else text


class Written:
    """Prints an answer's text as it is told, and the rest of it at the end."""

    def __init__(self) -> None:
        self._told = ""

    def hear(self, event: Event) -> None:
        """Prints a piece of text."""
        if not isinstance(event, TextPiece):
            return
        if event.restarts:
            if self._told:
                show()
                say("the model was asked anew")
            self._told = ""
        self._told += event.text
        show(event.text, end="")

    def end(self, answer: Answer) -> None:
        """Prints what was not told; of a text that was told otherwise, all of it."""
        text = said(answer)
        if answer.guessed and self._told == answer.text:
            text = f"{answer.text} (a guess)"
        if self._told and not text.startswith(self._told):
            show()
            self._told = ""
        show(text[len(self._told) :])


class Asked:
    """Remembers which answer is being made."""

    def __init__(self, answer_id: str = "") -> None:
        self._answer_id = answer_id

    def _hear(self, event: Event) -> None:
        if isinstance(event, Reading):
            self._answer_id = event.answer_id

    @contextmanager
    def interrupted(self, session: str) -> Iterator[Callable[[Event], None]]:
        """Says at Ctrl-C what can be done about the answer.

        What it yields has to hear the events.
        """
        try:
            yield self._hear
        except asyncio.CancelledError:
            if self._answer_id:
                say(
                    f"the answer is left: `palimpsest ask --resume {self._answer_id}"
                    f" -s {session}` goes on with it, `palimpsest cancel {self._answer_id}"
                    f" -s {session}` ends it"
                )
            raise


def all_of(*hears: Callable[[Event], None]) -> Callable[[Event], None]:
    """Tells several what is heard."""

    def hear(event: Event) -> None:
        for one in hears:
            one(event)

    return hear


def show_value(answer: Answer) -> None:
    """The answer by the schema that was asked for, if one was."""
    if answer.has_value:
        show(json.dumps(answer.value, ensure_ascii=False, indent=2))
    for line in _chosen(answer):
        show(f"  {line}")


def _chosen(answer: Answer) -> Iterator[str]:
    if answer.choice is not None:
        memory = f" of {answer.choice.memory!r}" if answer.choice.memory else ""
        yield f"read by {answer.choice.reader}{memory}: {answer.choice.reason}"


def value_json(answer: Answer) -> dict[str, Any]:
    """What only some answers have, as plain JSON."""
    told: dict[str, Any] = {}
    if answer.has_value:
        told["value"] = answer.value
    if answer.choice is not None:
        told["choice"] = {
            "reader": answer.choice.reader,
            "memory": answer.choice.memory,
            "option": answer.choice.option,
            "reason": answer.choice.reason,
            "expected_tokens": answer.choice.expected_tokens,
        }
    return told
