"""Rebuilding a memory: starting it, and following it until it is done."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from grpc import aio

from palimpsest import convert, specs, values
from palimpsest.connection import Connection, may_pass
from palimpsest.errors import from_rpc
from palimpsest.v1 import edits_pb2, edits_pb2_grpc

#: How often a rebuild is looked after when its call was lost.
LOOK_SECONDS = 0.5


def request_of(
    session: str, memory: str, new_memory: str, changes: Mapping[str, Any]
) -> edits_pb2.RebuildMemoryRequest:
    """The request; None among `changes` takes over what the old memory has.

    Raises ValueError.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    if "schema" in given:
        given |= specs.schema_fields(given.pop("schema"))
    for name in ("encoding", "operations", "steps"):
        if name in given:
            given[name] = specs.number_of(name, given[name])
    return edits_pb2.RebuildMemoryRequest(
        session=session, memory=memory, new_memory=new_memory, **given
    )


async def follow(
    connection: Connection,
    request: edits_pb2.RebuildMemoryRequest,
    look: Callable[[], Any],
    on_progress: Callable[[values.MemoryInfo], None] | None,
) -> None:
    """Starts the rebuild and returns when it is done.

    The new memory goes on without its call: when that is lost, `look` reads how far it
    is, and raises when it stalled.
    """
    stub = edits_pb2_grpc.EditServiceStub(connection.channel)
    goal: int | None = None
    try:
        async for response in connection.responses(stub.RebuildMemory, request):
            info = convert.memory(response.memory)
            goal = info.head if goal is None else goal
            if on_progress is not None:
                on_progress(info)
            if response.done:
                return
    except aio.AioRpcError as error:
        known = from_rpc(error, connection.address)
        if goal is None or not may_pass(known, error.code()):
            raise known from error
    while True:
        info = await look()
        if on_progress is not None:
            on_progress(info)
        if _is_done(info, goal or 0):
            return
        await asyncio.sleep(LOOK_SECONDS)


def _is_done(info: values.MemoryInfo, goal: int) -> bool:
    """Whether all up to `goal` is in it. A state memory leaves what is recent."""
    if info.kind == "state":
        return info.resting or info.applied_position > goal
    return info.applied_position >= goal
