"""Creating a memory, or finding that it is there already, as wanted."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from palimpsest.connection import Connection
from palimpsest.errors import AlreadyExists
from palimpsest.v1 import memories_pb2, memories_pb2_grpc, schemas_pb2, schemas_pb2_grpc

_SCHEMAS = ("schema_source", "json_schema")


async def create_memory(
    connection: Connection, request: memories_pb2.CreateMemoryRequest, *, exist_ok: bool
) -> None:
    """Creates the memory, or with `exist_ok` leaves one that has the same settings.

    What the request leaves to the service is not compared. Raises AlreadyExists.
    """
    stub = memories_pb2_grpc.MemoryServiceStub(connection.channel)
    try:
        await connection.call(stub.CreateMemory, request, retry=exist_ok)
    except AlreadyExists as error:
        if not exist_ok or error.reason != "MEMORY_EXISTS":
            raise
        listed = await connection.call(
            stub.ListMemories, memories_pb2.ListMemoriesRequest(session=request.session)
        )
        held = next((one for one in listed.memories if one.name == request.name), None)
        if held is None:
            # It went away in this moment: who wanted it is told, and can try again.
            raise
        others = [one async for one in _others(connection, request, held)]
        if others:
            raise AlreadyExists(
                f"memory {request.name!r} is there already, and {'; '.join(others)}."
                " Use it as it is (session.memory, session.tree or session.state), or choose"
                " another name",
                reason=error.reason,
                metadata=error.metadata,
            ) from error


async def _others(
    connection: Connection, wanted: memories_pb2.CreateMemoryRequest, held: memories_pb2.Memory
) -> AsyncIterator[str]:
    """Yields what of the memory is other than it is wanted, in words."""
    kind = wanted.WhichOneof("spec") or "prism"
    if held.WhichOneof("spec") != kind:
        yield f"is a {held.WhichOneof('spec')} memory, not a {kind} memory"
        return
    mine, there = getattr(wanted, kind), getattr(held, kind)
    for name in _given(mine):
        if name in _SCHEMAS:
            if await _shown(connection, mine) != there.schema_source:
                yield "its schema is another one"
        elif getattr(mine, name) != getattr(there, name):
            yield f"its {name} is another one"


def _given(spec: Any) -> Iterator[str]:
    return (field.name for field, _ in spec.ListFields())


async def _shown(connection: Connection, spec: memories_pb2.PrismSpec) -> str:
    """Returns the schema as the service keeps it."""
    request = schemas_pb2.CheckSchemaRequest(
        schema_source=spec.schema_source, json_schema=spec.json_schema
    )
    stub = schemas_pb2_grpc.SchemaServiceStub(connection.channel)
    return str((await connection.call(stub.CheckSchema, request)).schema_source)
