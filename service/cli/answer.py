"""`palimpsest answer`: list stored answers, show, cancel, rate and delete one."""

import json
from typing import Annotated, Any, Literal

import typer

from palimpsest import Answer, Session
from service.cli.command import Json, Limit, MissingOk, OnlyMemory, add_group
from service.cli.drawing import statistics_json
from service.cli.output import (
    CommandError,
    cut,
    error_json,
    first,
    plain_json,
    range_text,
    show,
    show_json,
    show_list,
    trust_mark,
)

#: Characters of a question in a list.
LISTED_CHARACTERS = 60
#: Answers that a list shows without --limit.
LISTED_ANSWERS = 20
#: Characters of an excerpt on a line: all of it, since the relevant part may come late.
EXCERPT_CHARACTERS = 500

AnswerId = Annotated[
    str, typer.Argument(metavar="ANSWER", help="The answer's id, as `answer list` prints it.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    summary = "Answers: list, show, cancel, rate, delete."
    add_group(app, "answer", summary, list_, show_, cancel, rate, delete)


async def list_(
    session: Session,
    memory: OnlyMemory = "",
    state: Annotated[
        Literal["pending", "running", "done", "failed", "cancelled", "abandoned"] | None,
        typer.Option(help="Only those in this state."),
    ] = None,
    limit: Limit = LISTED_ANSWERS,
    as_json: Json = False,
) -> None:
    """List the answers of a session, newest first."""
    await show_list(
        first(session.answers(memory=memory, state=state), limit),
        lambda answer: [_cells(answer)],
        ("=answer", "asked", "by", "state", "question"),
        as_json=as_json,
        to_json=answer_json,
    )


def _cells(answer: Answer) -> tuple[str, ...]:
    rated = "" if answer.rating is None else (", good" if answer.rating.good else ", bad")
    what = ", no answer" if answer.no_answer else ", a guess" if answer.guessed else ""
    return (
        answer.id,
        f"{answer.created_at:%Y-%m-%d %H:%M:%S}",
        answer.memory or answer.reader or "",
        answer.state + what + rated,
        cut(answer.query, LISTED_CHARACTERS),
    )


async def show_(session: Session, answer_id: AnswerId, as_json: Json = False) -> None:
    """Show an answer as it is stored, with what it rests on."""
    answer = await session.answer(answer_id)
    if as_json:
        show_json(answer_json(answer))
    elif answer.state == "done":
        show_answer(answer)
    else:
        why = answer.cause if answer.error is None else str(answer.error)
        show(f"{answer_id} is {answer.state}{why and ': '}{why}")


async def cancel(session: Session, answer_id: AnswerId, as_json: Json = False) -> None:
    """End the work on an answer; what was paid stays paid."""
    answer = await session.cancel_answer(answer_id)
    if answer.state != "cancelled":
        raise CommandError(f"answer {answer_id} had ended before: it is {answer.state}")
    show_json(answer_json(answer)) if as_json else show(f"{answer_id} is cancelled")


async def rate(
    session: Session,
    answer_id: AnswerId,
    good: Annotated[
        bool | None, typer.Option("--good/--bad", help="Whether it was good.", show_default=False)
    ] = None,
    comment: Annotated[str, typer.Option(help="What there is to say about it.")] = "",
    expected: Annotated[str, typer.Option(help="What would have been right.")] = "",
    as_json: Json = False,
) -> None:
    """Rate an answer that is done; `trajectory export` has the rating beside the moves."""
    if good is None:
        raise CommandError("give --good or --bad")
    answer = await session.rate(answer_id, good=good, comment=comment, expected=expected)
    line = f"{answer_id} is rated {'good' if good else 'bad'}"
    show_json(answer_json(answer)) if as_json else show(line)


async def delete(
    session: Session,
    answer_id: AnswerId,
    missing_ok: MissingOk = False,
) -> None:
    """Delete an answer with its question, text, citations, trajectory and rating."""
    await session.delete_answer(answer_id, missing_ok=missing_ok)
    show(f"{answer_id} is deleted")


def answer_json(answer: Answer) -> dict[str, Any]:
    """Returns an answer as plain JSON; `value` is there where a schema was asked for."""
    found: dict[str, Any] = plain_json(answer)
    if answer.error is not None:
        found["error"] = error_json(answer.error)
    if not found.pop("has_value"):
        del found["value"]
    if answer.statistics is not None:
        found["statistics"] = statistics_json(answer.statistics)
    return found


def said(answer: Answer) -> str:
    """Returns an answer's text, or why there is none; a guess is called one."""
    text = answer.text or answer.cause
    return f"a guess: {text}" if answer.guessed else text


def show_answer(answer: Answer) -> None:
    """Prints an answer, and what it rests on."""
    show(said(answer))
    show_below(answer)


def show_below(answer: Answer) -> None:
    """Prints what comes below an answer's text."""
    if answer.has_value:
        show(json.dumps(answer.value, ensure_ascii=False, indent=2))
    if answer.choice is not None:
        memory = f" of {answer.choice.memory!r}" if answer.choice.memory else ""
        show(f"  read by {answer.choice.reader}{memory}: {answer.choice.reason}")
    for cited in answer.citations:
        mark = trust_mark(cited.trust)
        if cited.node:
            where = range_text(cited.positions)
            excerpt = cut(cited.excerpt, EXCERPT_CHARACTERS)
            # Without navigation a citation comes from a state vector.
            source = "leaf" if answer.statistics is not None else "vector"
            if cited.node.startswith("p."):
                source = "piece"
            show(f"  [{cited.position}] {source} {cited.node} {where}{mark}: {excerpt}")
        elif cited.path:
            show(f"  [{cited.position}]{mark} {cited.path}")
        else:
            show(f"  [{cited.position}]{mark} {cut(cited.excerpt, EXCERPT_CHARACTERS)}")
    read = f"at revision {answer.read_point.revision}"
    if not (answer.memory or (answer.choice is not None and answer.choice.memory)):
        read = f"from the log up to position {answer.read_point.applied_position}"
    if answer.truncated:
        show("  cut off: the model's reply reached its bound before its end")
    if answer.left_out is not None:
        where = range_text(answer.left_out)
        show(f"  not gone through: {where}, more text than a reader may hold")
    show(f"  by {answer.model} {read}{_note(answer)}")
    for loss in answer.losses:
        show(f"  memory {answer.memory}: {loss.message}")


def _note(answer: Answer) -> str:
    if not answer.model.startswith("offline/"):
        return ""
    if answer.no_answer is not None or answer.guessed:
        return "; no language model"
    of_memory = answer.statistics is None and answer.memory
    of = "memory" if of_memory else "text"
    return f"; no language model: sentences of the {of}, word for word"
