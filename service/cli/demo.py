"""`palimpsest demo`: the main job, end to end, on real input, in one command."""

import time
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any
from uuid import uuid4

import typer

import palimpsest
from palimpsest._splitting import split
from service.cli.answer import show_answer
from service.cli.app import SettingsPath
from service.cli.command import Json
from service.cli.files import read_text
from service.cli.memory.output import amendment_line
from service.cli.output import CommandError, out, plain_json, say, show, show_json, tree_of
from service.cli.progress import follow
from service.cli.run import StopSignals, read_config
from service.cli.tasks import TASKS, Task
from service.domain.prism import default_memory

SESSION = "demo"
MEMORY = "notes"
#: Amendments and entries of the memory that are shown; all of them are stored.
SHOWN_AMENDMENTS = 12
SHOWN_ENTRIES = 12


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(demo)


class TaskName(StrEnum):
    """The tasks that the demo knows."""

    REFERENCE = "reference"
    BOOK = "book"
    CODE = "code"
    TABLES = "tables"


def demo(
    task: Annotated[
        TaskName,
        typer.Option(
            help="What to stream: Python's language reference, or one of the paper's three"
            " tasks: a book to summarize, code to search, tables to ask."
        ),
    ] = TaskName.REFERENCE,
    file: Annotated[str, typer.Option(help="A text of your own, in place of a task's.")] = "",
    question: Annotated[
        list[str] | None, typer.Option(help="A question of your own; may be given again.")
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            help="HOST:PORT of a service that runs: the demo is a session of it, which is kept,"
            " and starts nothing.",
            metavar="ADDR",
        ),
    ] = "",
    as_json: Json = False,
    settings_path: SettingsPath = None,
) -> None:
    """Run the main job once: servers, stream, memory, answers, cost. Leaves nothing behind.

    Starts an embedded PostgreSQL and Valkey, the API and a worker, streams a text into
    a session, shows how PRISM revises its memory, and asks it two or three questions.
    With --address it does so on a service that runs already.
    """
    job = _job(task, file, question or [])
    started = time.monotonic()
    stop = StopSignals()
    if address:
        session = f"{SESSION}-{uuid4().hex[:12]}"
        stop.run(_run(address, session, job, as_json))
        left = f'the session {session} is left: palimpsest ask -s {session} -m {MEMORY} "…"'
    else:
        _run_embedded(stop, job, as_json, started)
        left = "nothing is left behind"
    say(f"done after {time.monotonic() - started:.1f} s; {left}")


def _run_embedded(stop: StopSignals, job: Task, as_json: bool, started: float) -> None:
    """Runs the demo on temporary servers of its own."""
    from service.local.processes import ServerError
    from service.local.stack import TemporaryStack

    try:
        with TemporaryStack(read_config(), on_event=say) as stack:
            say(f"ready after {time.monotonic() - started:.1f} s")
            stop.run(_run(stack.address, SESSION, job, as_json))
    except ServerError as error:
        raise CommandError(str(error)) from error


def _job(name: TaskName, file: str, questions: list[str]) -> Task:
    if file:
        texts = list(split(read_text(file)))
        return Task(
            title=file,
            schema=default_memory.SCHEMA,
            task=default_memory.TASK,
            question="",
            chunk_tokens=600,
            texts=texts,
            questions=questions or _questions_for(texts),
        )
    job = TASKS[name]()
    return replace(job, questions=questions) if questions else job


def _questions_for(texts: list[str]) -> list[str]:
    """Returns three questions about an unknown text: what its sentences are about."""
    from service.llm.offline.texts import sections, terms

    counts: dict[str, int] = {}
    for text in texts:
        for section in sections(text):
            for sentence in section.sentences:
                for word in sentence.split():
                    bare = word.strip(".,;:!?\"'()[]*_`")
                    if len(bare) > 3 and bare.isalpha() and terms(bare):
                        counts[bare] = counts.get(bare, 0) + (2 if bare[0].isupper() else 1)
    best = sorted(counts, key=lambda word: (-counts[word], word))[:3]
    return [f"What is said about {word}?" for word in best]


async def _run(address: str, name: str, job: Task, as_json: bool) -> None:
    try:
        connection = palimpsest.connect(address)
    except ValueError as error:
        raise CommandError(str(error)) from error
    async with connection as client:
        session = await client.create_session(name)
        memory = await session.create_memory(
            MEMORY,
            schema_source=job.schema,
            task=job.task,
            question=job.question,
            chunk_tokens=job.chunk_tokens,
        )
        say(f"streaming {len(job.texts)} chunks of {job.title}")
        async with session.producer("demo") as producer:
            for text in job.texts:
                await producer.append(text)
            ack = await producer.flush()
        assert ack is not None, "there was something to append"
        say(f"{ack.producer_sequence} chunks acked: they are durable")
        state = await follow(memory)
        changes = [change async for change in memory.amendments()]
        answers = [await memory.ask(query, after=ack.read_token) for query in job.questions]
        used = (await session.usage()).total
    if as_json:
        show_json({"session": name, **_summary(job, ack, state, changes, answers, used)})
    else:
        _show(state, changes, answers, used)


def _summary(
    job: Task,
    ack: palimpsest.Ack,
    state: palimpsest.MemoryState,
    changes: list[palimpsest.Amendment],
    answers: list[palimpsest.Answer],
    used: palimpsest.Usage,
) -> dict[str, Any]:
    total = plain_json(used)
    return {
        "chunks": len(job.texts),
        "acked": ack.producer_sequence,
        "applied_position": state.applied_position,
        "revisions": state.revision,
        "amendments": len(changes),
        "answers": [
            {
                "query": answer.query,
                "text": answer.text,
                "citations": [cited.position for cited in answer.citations],
            }
            for answer in answers
        ],
        "calls": total.pop("calls"),
        "tokens": total,
    }


def _show(
    state: palimpsest.MemoryState,
    changes: list[palimpsest.Amendment],
    answers: list[palimpsest.Answer],
    used: palimpsest.Usage,
) -> None:
    show()
    value = state.value
    # A memory of one field is shown by what is in it.
    entries = next(iter(value.values())) if len(value) == 1 else value
    shown = dict(list(entries.items())[:SHOWN_ENTRIES])
    title = (
        f"The memory at revision {state.revision}: {len(entries)} entries"
        f" from {state.applied_position} chunks, the first {len(shown)} of them"
    )
    out.print(tree_of(title, shown, items=2))
    show()
    show(f"The amendment log: {len(changes)} amendments, the last {SHOWN_AMENDMENTS} of them")
    for change in changes[-SHOWN_AMENDMENTS:]:
        show("  " + amendment_line(change))
    for answer in answers:
        show()
        show(f"Q: {answer.query}")
        show_answer(answer)
    show()
    share = used.predicted_cached_tokens / used.input_tokens if used.input_tokens else 0.0
    price = f"{used.cost_micro_usd / 1e6:.2f}" if used.is_priced else "unknown"
    show(
        f"It cost {used.calls} calls, {used.input_tokens:,} tokens in"
        f" ({share:.0%} of them predicted to be cached), {used.output_tokens:,} out, {price} USD."
    )
