"""What commands need of each kind of memory: a subclass in a file of its own."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import typer
from rich.tree import Tree as Drawing

from palimpsest import Memory, MemoryInfo, MemoryState, Operation, Session
from service.cli.command import given
from service.cli.output import tree_of

Model = Annotated[str | None, typer.Option(help="Model as provider/name.")]
ReplyFormat = Annotated[
    Literal["auto", "text", "structured"] | None,
    typer.Option(help="How the model writes its replies; default: auto."),
]
SkipFailures = Annotated[
    bool | None,
    typer.Option("--skip-failures/--no-skip-failures", help="Skip what fails for good."),
]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a command for memories of one kind: the fields of a subclass."""

    def settings(self) -> dict[str, Any]:
        """Returns what was given, as the client takes it. Raises CommandError."""
        return given(self)


class KindCommands:
    """A kind of memory, as commands create, change and show it."""

    name: ClassVar[str]
    #: Names the client's methods for this kind: `create_tree` and `tree` of a session.
    noun: ClassVar[str]
    #: Help of `memory create`.
    creating: ClassVar[str]
    #: What `memory rebuild` makes, in its help.
    rebuilt: ClassVar[str]
    new_options: ClassVar[type[Options]]
    rebuild_options: ClassVar[type[Options]]
    #: Settings that `ingest` can give to a new memory.
    ingest_settings: ClassVar[frozenset[str]]
    #: Settings that `memory update` can change.
    changeable: ClassVar[frozenset[str]] = frozenset({"model"})
    #: Whether a step may wait for more chunks, until a flush.
    lingers: ClassVar[bool] = False

    async def create(self, session: Session, name: str, **settings: Any) -> Memory:
        """Creates a memory."""
        made: Memory = await getattr(session, f"create_{self.noun}")(name, **settings)
        return made

    async def ingest(self, session: Session, name: str, **settings: Any) -> Memory:
        """Creates a memory for `ingest`, with defaults that fit any text."""
        return await self.create(session, name, **settings)

    async def rebuild(
        self, memory: Memory, info: MemoryInfo, name: str, changes: dict[str, Any], **call: Any
    ) -> Operation[MemoryInfo]:
        """Starts to read the log again into a new memory. What is not changed stays."""
        settings = replace(getattr(info, self.noun), **changes)
        started: Operation[MemoryInfo] = await self._of(memory).rebuild(
            name, settings=settings, **call
        )
        return started

    async def update(
        self, memory: Memory, changes: dict[str, Any], *, comment: str, **call: Any
    ) -> MemoryInfo:
        """Changes settings. Only kinds with revisions of a schema keep the comment."""
        info: MemoryInfo = await self._of(memory).update(**changes, **call)
        return info

    def _of(self, memory: Memory) -> Any:
        """Returns the client's handle for memories of this kind."""
        return getattr(memory.session, self.noun)(memory.id)

    def drawing(self, state: MemoryState) -> Drawing:
        """Returns a memory as a tree for the terminal."""
        title = (
            f"{state.info.id} at revision {state.revision}:"
            f" {state.applied_position} of {state.info.head} chunks applied"
        )
        return tree_of(title, state.value)

    def progress(self, info: MemoryInfo) -> str:
        """Returns how much of the log a rebuilt memory has read, in a few words."""
        return "everything applied"
