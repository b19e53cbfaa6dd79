"""`palimpsest operation`: list long work, show, wait for and cancel it."""

from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from palimpsest import Client, GeneratedSchema, MemoryInfo, Operation, OperationInfo, Redaction
from service.cli.command import DAY, Json, Limit, OnlyMemory, add_group
from service.cli.output import (
    CommandError,
    counted,
    error_json,
    first,
    plain_json,
    show,
    show_json,
    show_list,
)
from service.cli.progress import follow_operation

#: Operations that a list shows without --limit.
LISTED_OPERATIONS = 20

OperationArgument = Annotated[
    str, typer.Argument(metavar="OPERATION", help="Its id, as `operation list` prints it.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    summary = "Long work: list, show, wait, cancel."
    add_group(app, "operation", summary, list_, show_, wait, cancel)


async def list_(
    client: Client,
    session: Annotated[str, typer.Option("--session", "-s", help="Only this session.")] = "",
    memory: OnlyMemory = "",
    kind: Annotated[
        Literal["rebuild", "consolidation", "schema", "seal", "redaction"] | None,
        typer.Option(help="Only those of this kind."),
    ] = None,
    state: Annotated[
        Literal["pending", "running", "done", "failed", "cancelled"] | None,
        typer.Option(help="Only those in this state."),
    ] = None,
    limit: Limit = LISTED_OPERATIONS,
    as_json: Json = False,
) -> None:
    """List operations, newest first: of all sessions, or of one."""
    if memory and not session:
        raise CommandError("--memory: name the session of the memory with --session")
    found = client.operations(session=session, memory=memory, kind=kind, state=state)
    await show_list(
        first(found, limit),
        lambda one: [_cells(one.info)],
        ("=operation", "kind", "session", "memory", "state"),
        as_json=as_json,
        to_json=lambda one: operation_json(one.info),
    )


def _cells(info: OperationInfo[Any]) -> tuple[str, ...]:
    state: str = info.state
    if info.progress is not None and info.progress.total:
        state = f"{state}, {info.progress.completed} of {info.progress.total}"
    return info.id, info.kind, info.session, info.memory, state


async def show_(client: Client, operation: OperationArgument, as_json: Json = False) -> None:
    """Show an operation, why it does not go on or why it failed, and its result."""
    info = (await client.operation(operation)).info
    if as_json:
        show_json(operation_json(info))
        return
    _, kind, session, memory, state = _cells(info)
    of = f"memory {memory} of session {session}" if memory else f"session {session}"
    show(f"{kind} of {of}: {state}")
    if info.progress is not None and info.progress.blocked is not None:
        show(f"waiting: {info.progress.blocked.cause}")
    if info.error is not None:
        show(str(info.error))
    _show_result(info)


async def wait(
    client: Client,
    operation: OperationArgument,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, max=DAY, help="Seconds to wait; default: no limit.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Wait until an operation has ended, and show its result. Ctrl-C ends the waiting only."""
    found: Operation[Any] = await client.operation(operation)
    await follow_operation(found, found.kind, timeout=timeout)
    show_json(operation_json(found.info)) if as_json else _show_result(found.info)


def _show_result(info: OperationInfo[Any]) -> None:
    match info.result:
        case MemoryInfo():
            result = info.result
            where = f"{result.applied_position} of {result.head} chunks applied"
            show(f"{result.id} is at revision {result.revision}, {where}")
        case GeneratedSchema():
            # As it is: neither markup nor wrapped.
            print(info.result.schema_source, end="", flush=True)
        case Redaction():
            show(f"{counted(info.result.chunks, 'chunk')} redacted")
            for table, count in sorted(info.result.removed.items()):
                show(f"{count:>9,} {table}")


async def cancel(client: Client, operation: OperationArgument, as_json: Json = False) -> None:
    """Cancel an operation. Of a rebuild, the new memory is deleted."""
    info = await (await client.operation(operation)).cancel()
    show_json(operation_json(info)) if as_json else show(f"the operation is {info.state}")


def operation_json(info: OperationInfo[Any]) -> dict[str, Any]:
    """Returns an operation as plain JSON."""
    found: dict[str, Any] = plain_json(replace(info, error=None), id="operation")
    if info.error is not None:
        found["error"] = error_json(info.error)
    return found
