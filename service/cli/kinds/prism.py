"""PRISM memories, as commands create, change and show them."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from palimpsest import Memory, MemoryInfo, Operation, Session
from service.cli.command import MAX_CHUNK_TOKENS, MAX_TOKENS, given
from service.cli.files import read_schema
from service.cli.kinds.kind import KindCommands, Model, Options, ReplyFormat, SkipFailures
from service.cli.output import CommandError
from service.domain.prism import default_memory

MAX_LINGER_SECONDS = 3600.0
#: What `ingest` creates without a schema: the default memory, in steps for long texts.
GENERAL = {
    "schema": default_memory.SCHEMA,
    "task": default_memory.TASK,
    "steps": default_memory.SPEC.steps.value,
}


@dataclass(frozen=True, slots=True)
class PrismOptions(Options):
    """Settings of a PRISM memory that a rebuild may change."""

    schema: Annotated[
        str | None, typer.Option(help="A file with the schema: class source, or JSON Schema.")
    ] = None
    task: Annotated[str | None, typer.Option(help="What the memory is for.")] = None
    question: Annotated[str | None, typer.Option(help="The question that it serves.")] = None
    final_task: Annotated[
        str | None, typer.Option(help="How answers are to be: their form, length, language.")
    ] = None
    encoding: Annotated[
        Literal["adaptive", "amendments", "in_place"] | None,
        typer.Option(help="How prompts show the memory; default: adaptive."),
    ] = None
    allowed_ops: Annotated[
        Literal["add_and_update", "add_only"] | None,
        typer.Option(help="Which amendments the model may propose; default: add_and_update."),
    ] = None
    steps: Annotated[
        Literal["whole", "focused"] | None,
        typer.Option(
            help="focused: past --memory-tokens a step sees what fits it; the memory may grow."
        ),
    ] = None
    chunk_tokens: Annotated[
        int | None, typer.Option(min=0, max=MAX_CHUNK_TOKENS, help="Tokens a step; 0: 2,000.")
    ] = None
    model: Model = None

    def settings(self) -> dict[str, Any]:
        """Returns what was given, as the client takes it. Raises CommandError."""
        found = given(self)
        return {**found, "schema": read_schema(found["schema"])} if "schema" in found else found


@dataclass(frozen=True, slots=True)
class NewPrismOptions(PrismOptions):
    """Settings of a new PRISM memory."""

    coercion: Annotated[
        Literal["refuse", "lossless"] | None,
        typer.Option(help="What happens to a value of another type; default: refuse."),
    ] = None
    fold_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_TOKENS,
            help="Fold amendments past so many; 0: 100,000, or 8,000 with amendments.",
        ),
    ] = None
    memory_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_TOKENS,
            help="Consolidate, or focus steps, past so many; 0: 6,000, or what the window has"
            " room for.",
        ),
    ] = None
    linger: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=MAX_LINGER_SECONDS,
            help="Seconds a step waits for more chunks. Default: 10 while all that waits is"
            " messages (the service's setting), else 0.",
        ),
    ] = None
    reply_format: ReplyFormat = None
    skip_failures: SkipFailures = None

    def settings(self) -> dict[str, Any]:
        """Returns what was given, as the client takes it. Raises CommandError."""
        found = PrismOptions.settings(self)
        if "schema" not in found:
            raise CommandError("give --schema, a file; `palimpsest schema generate` writes one")
        return found


class PrismKind(KindCommands):
    """Memories with a schema, which amendments change."""

    name = "prism"
    noun = "memory"
    creating = """Create a PRISM memory, which is revised by the texts of its session.

    Its schema says what it holds. It is parsed and never run; `schema generate` writes one.
    """
    rebuilt = "a new PRISM memory"
    new_options = NewPrismOptions
    rebuild_options = PrismOptions
    ingest_settings = frozenset({"schema", "task", "model"})
    changeable = frozenset({"schema", "model"})
    lingers = True

    async def ingest(self, session: Session, name: str, **settings: Any) -> Memory:
        """Creates a memory; the default one if no schema is given."""
        general = {} if "schema" in settings else GENERAL
        return await self.create(session, name, **{"chunk_tokens": 1000, **general, **settings})

    async def rebuild(
        self, memory: Memory, info: MemoryInfo, name: str, changes: dict[str, Any], **call: Any
    ) -> Operation[MemoryInfo]:
        """Starts to read the log again into a new memory. What is not changed stays."""
        return await memory.rebuild(name, **changes, **call)

    async def update(
        self, memory: Memory, changes: dict[str, Any], *, comment: str, **call: Any
    ) -> MemoryInfo:
        """Changes the schema or the model."""
        return await memory.update(**changes, comment=comment, **call)
