"""State memories, as commands create, change and show them."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from rich.tree import Tree as Drawing

from palimpsest import MemoryInfo, MemoryState
from service.cli.command import MAX_TOKENS, given
from service.cli.files import read_text
from service.cli.kinds.kind import KindCommands, Model, Options, ReplyFormat, SkipFailures
from service.cli.output import CommandError, positions, tree_of

#: What the proto allows.
MAX_PERIOD = 1000
MAX_STATE_TOKENS = 32_000
MAX_EPISODE_VECTORS = 64
MAX_IDLE_SECONDS = 30 * 86_400.0
#: Vectors, and recent chunks, of a working context that are shown.
MAX_CONTEXT_LINES = 20


@dataclass(frozen=True, slots=True)
class StateOptions(Options):
    """Settings of a state memory."""

    task: Annotated[str | None, typer.Option(help="The task prompt, the first vector.")] = None
    task_file: Annotated[
        str | None, typer.Option(help="A file with the task prompt, or - for standard input.")
    ] = None
    period: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_PERIOD, help="N, steps that a compression takes; 0: 10."),
    ] = None
    period_kind: Annotated[
        Literal["fixed", "adaptive"] | None,
        typer.Option(help="Always N steps, or fewer when they say much; default: fixed."),
    ] = None
    period_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_TOKENS,
            help="Tokens that stay uncompressed at most; default: 4,000; 0: any.",
        ),
    ] = None
    idle: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=MAX_IDLE_SECONDS,
            help="Compress also after so many seconds without a step; 0: never.",
        ),
    ] = None
    state_tokens: Annotated[
        int | None, typer.Option(min=0, max=MAX_STATE_TOKENS, help="Tokens of a vector; 0: 500.")
    ] = None
    pin: Annotated[
        list[str] | None, typer.Option(help="A text that every vector has; may be repeated.")
    ] = None
    episode_vectors: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_EPISODE_VECTORS,
            help="K, vectors that make one of the next level; 0: no episodes.",
        ),
    ] = None
    model: Model = None
    reply_format: ReplyFormat = None
    skip_failures: SkipFailures = None

    def settings(self) -> dict[str, Any]:
        """Returns what was given, as the client takes it. Raises CommandError."""
        found = given(self)
        if file := found.pop("task_file", ""):
            if found.get("task"):
                raise CommandError("give --task or --task-file, not both")
            found["task"] = read_text(file).rstrip()
        if "idle" in found:
            found["idle_seconds"] = found.pop("idle")
        if "pin" in found:
            found["pinned"] = tuple(found.pop("pin"))
        return found


@dataclass(frozen=True, slots=True)
class RebuiltStateOptions(StateOptions):
    """Settings of a state memory that is rebuilt."""

    no_pins: Annotated[bool, typer.Option("--no-pins", help="Nothing is pinned.")] = False

    def settings(self) -> dict[str, Any]:
        """Returns what was given, as the client takes it. Raises CommandError."""
        found = StateOptions.settings(self)
        if found.pop("no_pins"):
            if "pinned" in found:
                raise CommandError("give --pin or --no-pins, not both")
            found["pinned"] = ()
        return found


class StateKind(KindCommands):
    """Memories that compress the steps of an agent."""

    name = noun = "state"
    creating = "Create a state memory, which compresses the steps of an agent."
    rebuilt = "a new state memory"
    new_options = StateOptions
    rebuild_options = RebuiltStateOptions
    ingest_settings = frozenset({"task", "model"})

    def drawing(self, state: MemoryState) -> Drawing:
        """Returns a working context as a tree with a line for each vector and chunk."""
        vectors, recent = state.value["vectors"], state.value["recent"]
        compressed = recent[0]["position"] - 1 if recent else state.applied_position
        title = (
            f"{state.info.id} at revision {state.revision}:"
            f" {compressed} of {state.info.head} chunks compressed"
        )
        lines = {
            "vectors": [
                f"r{one['revision']} level {one['level']}"
                f" {positions(one['from_position'], one['to_position'])} {one['text']}"
                for one in vectors
            ],
            "recent": [f"[{one['position']}] {one['text']}" for one in recent],
        }
        return tree_of(title, lines, items=MAX_CONTEXT_LINES)

    def progress(self, info: MemoryInfo) -> str:
        """Returns how many chunks are compressed: the newest steps never are."""
        return f"{info.applied_position} of {info.head} chunks compressed"
