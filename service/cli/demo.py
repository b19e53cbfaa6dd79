"""`palimpsest demo`: the main job, end to end, on real input, in one command."""

import asyncio
import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer

import palimpsest
from palimpsest import values
from service.cli.output import CommandError, out, say, show, show_json, tree_of
from service.cli.resources import amendment_line
from service.cli.run import StopSignals, read_config
from service.cli.talk import (
    DEFAULT_SCHEMA,
    DEFAULT_TASK,
    answer_json,
    follow,
    show_answer,
    usage_json,
)
from service.cli.texts import read_text, split

SESSION = "demo"
MEMORY = "notes"
#: Amendments and topics that are shown; all of them are stored.
SHOWN_AMENDMENTS = 12
SHOWN_TOPICS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """What is streamed and asked."""

    name: str
    schema: str
    task: str
    texts: list[str]
    questions: list[str]


_REFERENCE_SCHEMA = '''class LanguageReference:
    """What the reference of a programming language says, by topic."""
    topics: dict[str, list[str]]
    """Sentences that define or explain, keyed by the statement or notion they are about."""
'''
_REFERENCE_QUESTIONS = [
    "What does the assert statement do?",
    "How does a with statement call __enter__ and __exit__?",
    "What does the global statement mean?",
]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(demo)


def demo(
    file: Annotated[
        str, typer.Option(help="A text of your own. Default: Python's language reference.")
    ] = "",
    question: Annotated[
        list[str] | None, typer.Option(help="A question of your own; may be given again.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object last.")] = False,
) -> None:
    """Run the main job once: servers, stream, memory, answers, cost. Leaves nothing behind.

    Starts an embedded PostgreSQL and Valkey, the API and a worker, streams a text into
    a session, shows how PRISM revises its memory, and asks it three questions.
    """
    from service.embedded.processes import ServerError
    from service.embedded.stack import TemporaryStack

    job = _job(file, question or [])
    started = time.monotonic()
    StopSignals()
    try:
        with TemporaryStack(read_config(), on_event=say) as stack:
            say(f"ready after {time.monotonic() - started:.1f} s")
            asyncio.run(_run(stack.address, job, as_json))
    except ServerError as error:
        raise CommandError(str(error)) from error
    say(f"done after {time.monotonic() - started:.1f} s; nothing is left behind")


def _job(file: str, questions: list[str]) -> _Job:
    if file:
        texts = list(split(read_text(file)))
        asked = questions or _questions_for(texts)
        return _Job(
            name=file, schema=DEFAULT_SCHEMA, task=DEFAULT_TASK, texts=texts, questions=asked
        )
    # Ships inside every CPython, and is long, structured and known to everybody here.
    from pydoc_data.topics import topics

    texts = [piece for topic in topics.values() for piece in split(topic)]
    return _Job(
        name="Python's language reference",
        schema=_REFERENCE_SCHEMA,
        task="Keep what the reference says about each statement and notion.",
        texts=texts,
        questions=questions or _REFERENCE_QUESTIONS,
    )


def _questions_for(texts: list[str]) -> list[str]:
    """Three questions about a text that nobody has read: what its sentences are about."""
    from service.llm.texts import sections, terms

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


async def _run(address: str, job: _Job, as_json: bool) -> None:
    async with palimpsest.connect(address) as client:
        session = await client.create_session(SESSION)
        memory = await session.create_memory(
            MEMORY, schema_source=job.schema, task=job.task, chunk_tokens=600
        )
        say(f"streaming {len(job.texts)} chunks of {job.name}")
        async with session.producer("demo") as producer:
            for text in job.texts:
                await producer.append(text)
            ack = await producer.flush()
        assert ack is not None, "there was something to append"
        say(f"{ack.producer_sequence} chunks acked: they are durable")
        state = await follow(memory)
        changes = [change async for change in memory.amendments()]
        answers = [await memory.ask(query, after=ack.token) for query in job.questions]
        report = await session.usage()
    if as_json:
        show_json(_summary(job, ack, state, changes, answers, report))
    else:
        _show(state, changes, answers, report)


def _summary(
    job: _Job,
    ack: values.Ack,
    state: values.MemoryState,
    changes: list[values.Amendment],
    answers: list[values.Answer],
    report: values.UsageReport,
) -> dict[str, Any]:
    total = usage_json(report.total)
    return {
        "chunks": len(job.texts),
        "acked": ack.producer_sequence,
        "applied_position": state.applied_position,
        "revisions": state.revision,
        "amendments": len(changes),
        "answers": [
            {
                "query": answer["query"],
                "text": answer["text"],
                "citations": [cited["position"] for cited in answer["citations"]],
            }
            for answer in map(answer_json, answers)
        ],
        "calls": total.pop("calls"),
        "tokens": total,
    }


def _show(
    state: values.MemoryState,
    changes: list[values.Amendment],
    answers: list[values.Answer],
    report: values.UsageReport,
) -> None:
    show()
    topics = state.value.get("topics", state.value)
    shown = dict(list(topics.items())[:SHOWN_TOPICS])
    title = (
        f"The memory at revision {state.revision}: {len(topics)} topics"
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
    used = report.total
    share = used.predicted_cached_tokens / used.input_tokens if used.input_tokens else 0.0
    price = "unknown" if used.cost_micro_usd is None else f"{used.cost_micro_usd / 1e6:.2f}"
    show(
        f"It cost {used.calls} calls, {used.input_tokens:,} tokens in"
        f" ({share:.0%} of them predicted to be cached), {used.output_tokens:,} out, {price} USD."
    )
