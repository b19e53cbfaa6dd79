"""Commands that talk to a running service, and the options that they share."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints
from uuid import uuid4

import typer

import palimpsest
from service.cli.app import new_group
from service.cli.output import CommandError

#: The largest revision or position that there can be.
LAST = 2**63 - 1
#: The most tokens of a step, and of a memory or its amendments, that the proto allows.
MAX_CHUNK_TOKENS = 100_000
MAX_TOKENS = 1_000_000
#: How long a command may wait, in seconds.
DAY = 86_400.0

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_NAME = "default"

Address = Annotated[
    str,
    typer.Option(
        "--address",
        envvar="PALIMPSEST_ADDRESS",
        help="HOST:PORT of the service; by TLS grpcs://HOST:PORT.",
        metavar="ADDR",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", help="A file with the key or token (or PALIMPSEST_TOKEN).", metavar="PATH"
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file", help="PEM of trusted roots, for grpcs:// (PALIMPSEST_CA_FILE).", metavar="PATH"
    ),
]
SessionName = Annotated[str, typer.Option("--session", "-s", help="The session.")]
MaybeSession = Annotated[
    str | None, typer.Option("--session", "-s", help=f"The session. Default: {DEFAULT_NAME}.")
]
MemoryName = Annotated[str, typer.Option("--memory", "-m", help="The memory.")]
OnlyMemory = Annotated[str, typer.Option("--memory", "-m", help="Only this memory.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Timeout = Annotated[float, typer.Option(min=0.1, max=DAY, help="Seconds to wait.")]
AtRevision = Annotated[int | None, typer.Option(min=0, max=LAST, help="As it was then.")]
Model = Annotated[str, typer.Option(help="Model as provider/name.")]
Limit = Annotated[int, typer.Option(min=1, help="How many at most.")]
MissingOk = Annotated[bool, typer.Option("--missing-ok", help="Succeed where there is none.")]
PathArgument = Annotated[str, typer.Argument(help="$['a']['b'][0], $.'a'.'b'[0] or /a/b/0.")]

#: In place of --session and --memory: the first argument names the session or memory.
NamedSession = Annotated[palimpsest.Session, typer.Argument(help="The session's name.")]
NamedMemory = Annotated[palimpsest.Memory, typer.Argument(help="The memory's name.")]


@dataclass(frozen=True, slots=True)
class Freshness:
    """Options that say how fresh the memory has to be that is read."""

    after: Annotated[
        str | None, typer.Option("--after", help="A token: what it stands for is applied.")
    ] = None
    applied: Annotated[
        bool, typer.Option("--applied", help="Wait until the whole log is applied.")
    ] = False

    def wanted(self) -> dict[str, Any]:
        """Returns them as reads of the client take them. Raises CommandError."""
        if self.after is not None and self.applied:
            raise CommandError("give --after or --applied, not both")
        if self.after == "":
            # It would ask for nothing.
            raise CommandError("--after: the token is empty")
        return {"after": self.after or "", "fully_applied": self.applied}


@dataclass(frozen=True, slots=True)
class Labels:
    """Options that say which chunks are wanted, by their labels."""

    thread: Annotated[
        list[str] | None, typer.Option(help='Chunks of this thread, "" for none; may be repeated.')
    ] = None
    exclude_thread: Annotated[
        list[str] | None, typer.Option(help="No chunks of this thread; may be repeated.")
    ] = None
    source: Annotated[
        list[str] | None, typer.Option(help='Chunks from it, "" for none; may be repeated.')
    ] = None
    trusted: Annotated[bool, typer.Option("--trusted", help="Only from trusted sources.")] = False

    def wanted(self) -> dict[str, Any]:
        """Returns them as reads of the client take them."""
        return {
            "threads": self.thread or (),
            "excluded_threads": self.exclude_thread or (),
            "sources": self.source or (),
            "min_trust": "trusted" if self.trusted else None,
        }


#: The names that a parameter of these types needs.
_NAMES: Mapping[Any, tuple[str, ...]] = {
    palimpsest.Client: (),
    palimpsest.Session: ("session",),
    palimpsest.Memory: ("session", "memory"),
    palimpsest.Tree: ("session", "memory"),
    palimpsest.State: ("session", "memory"),
}
_OPTIONS: Mapping[str, tuple[Any, Any]] = {
    "session": (SessionName, DEFAULT_NAME),
    "memory": (MemoryName, DEFAULT_NAME),
    "address": (Address, DEFAULT_ADDRESS),
    "token_file": (TokenFile, None),
    "ca_file": (CaFile, None),
}
#: Options of the connection.
_CONNECTION = ("address", "token_file", "ca_file")
#: Options that every command has last in its help.
_LAST = ("session", "memory", *_CONNECTION, "as_json")

_Work = Callable[..., Coroutine[Any, Any, None]]
#: Makes an argument of a command from the client and from the options by their names.
_Make = Callable[[palimpsest.Client, dict[str, Any]], Any]


def command(group: typer.Typer, name: str, work: _Work, *, timeout: float | None = None) -> None:
    """Adds a command that talks to a service; `timeout` as of `palimpsest.connect`.

    The parameters of `work` are the command's arguments and options. A Client, Session, Memory,
    Tree or State is what --address, --session and --memory name; a dataclass stands for the
    options that its fields are.
    """
    shared: dict[str, _Make] = {}
    parameters: dict[str, inspect.Parameter] = {}
    #: Names of arguments that replace options.
    arguments: set[str] = set()

    def add(option: str, annotation: Any, default: Any) -> None:
        parameters[option] = inspect.Parameter(
            option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )

    for one in inspect.signature(work).parameters.values():
        kind, argument = one.annotation, None
        if get_origin(kind) is Annotated:
            kind, argument = get_args(kind)[:2]
        if kind in _NAMES:
            for option in _NAMES[kind]:
                add(option, *_OPTIONS[option])
            for option in _CONNECTION:
                add(option, *_OPTIONS[option])
            if argument is not None:
                name_of = _NAMES[kind][-1]
                default = DEFAULT_NAME if name_of == "memory" else inspect.Parameter.empty
                add(name_of, Annotated[str, argument], default)
                arguments.add(name_of)
            shared[one.name] = _handle(kind)
        elif is_dataclass(kind):
            hints = get_type_hints(kind, include_extras=True)
            names = tuple(field.name for field in fields(kind))
            for field in fields(kind):
                add(field.name, hints[field.name], field.default)
            shared[one.name] = _options(kind, names)
        else:
            add(one.name, one.annotation, one.default)

    def run(**given: Any) -> None:
        asyncio.run(_run(work, shared, given, timeout))

    last = [name for name in _LAST if name in parameters and name not in arguments]
    ordered = [one for name, one in parameters.items() if name not in last]
    ordered += [parameters[name] for name in last]
    run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    run.__doc__ = work.__doc__
    group.command(name)(run)


def add_commands(group: typer.Typer, *works: _Work) -> None:
    """Adds commands that have the names of their functions."""
    for work in works:
        command(group, work.__name__.strip("_"), work)


def add_group(app: typer.Typer, noun: str, summary: str, *works: _Work) -> None:
    """Adds a noun of the command line, with a verb for each function."""
    group = new_group(summary)
    add_commands(group, *works)
    app.add_typer(group, name=noun)


async def _run(
    work: _Work, shared: Mapping[str, _Make], given: dict[str, Any], timeout: float | None
) -> None:
    own = inspect.signature(work).parameters
    try:
        connection = palimpsest.connect(
            given.get("address", DEFAULT_ADDRESS),
            token=given.get("token_file"),
            ca_file=given.get("ca_file"),
            timeout=timeout,
        )
    except ValueError as error:
        raise CommandError(str(error)) from error
    async with connection as client:
        made = {name: make(client, given) for name, make in shared.items()}
        await work(**made, **{name: given[name] for name in own if name not in made})


def _handle(kind: Any) -> _Make:
    """Returns what makes a Client, Session, Memory, Tree or State."""

    def handle(client: palimpsest.Client, given: dict[str, Any]) -> Any:
        found: Any = client
        for option in _NAMES[kind]:
            # client.session(…), and of that memory, tree or state.
            verb = "session" if option == "session" else kind.__name__.lower()
            found = getattr(found, verb)(given[option])
        return found

    return handle


def _options(kind: Any, names: tuple[str, ...]) -> _Make:
    """Returns what makes a dataclass of options."""
    return lambda _, given: kind(**{name: given[name] for name in names})


def given(options: Any) -> dict[str, Any]:
    """Returns the options that were given, of a dataclass whose defaults are None."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: value for name, value in values.items() if value is not None}


def new_request_id() -> str:
    """Returns an id for one call that changes something.

    With it the client makes the call again while the service cannot be reached.
    """
    return uuid4().hex
