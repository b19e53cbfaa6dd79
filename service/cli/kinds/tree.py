"""Summary trees, as commands create and change them."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from service.cli.command import MAX_CHUNK_TOKENS
from service.cli.kinds.kind import KindCommands, Model, Options, ReplyFormat, SkipFailures

#: What the proto allows.
MAX_CHILDREN = 32
MAX_SUMMARY_TOKENS = 8_000
MAX_WORKING_MEMORY_TOKENS = 32_000


@dataclass(frozen=True, slots=True)
class TreeOptions(Options):
    """Settings of a summary tree."""

    segment_tokens: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_CHUNK_TOKENS, help="Tokens under a leaf; 0: 1,000."),
    ] = None
    max_children: Annotated[
        int | None, typer.Option(min=0, max=MAX_CHILDREN, help="Children of a node; 0: 8.")
    ] = None
    summary_tokens: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_SUMMARY_TOKENS, help="Tokens of a summary; 0: 250."),
    ] = None
    reasoning: Annotated[
        bool | None,
        typer.Option(
            "--reasoning/--no-reasoning",
            help="Whether the model says why before it moves; default: it does.",
        ),
    ] = None
    working_memory: Annotated[
        Literal["off", "cut", "summarized"] | None,
        typer.Option(help="What is carried down the path; default: cut."),
    ] = None
    working_memory_tokens: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_WORKING_MEMORY_TOKENS, help="Tokens of that; 0: 500."),
    ] = None
    model: Model = None
    navigation_model: Annotated[
        str | None, typer.Option(help="Model for questions, as provider/name; default: --model.")
    ] = None
    reply_format: ReplyFormat = None
    skip_failures: SkipFailures = None


class TreeKind(KindCommands):
    """Trees of summaries over the log."""

    name = noun = "tree"
    creating = "Create a summary tree, which grows over the texts of its session."
    rebuilt = "a new tree, which is open"
    new_options = TreeOptions
    rebuild_options = TreeOptions
    ingest_settings = frozenset({"segment_tokens", "model"})
    changeable = frozenset({"model", "navigation_model"})
