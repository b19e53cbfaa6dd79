"""Calls that are refused."""

from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

import palimpsest
from palimpsest.v1 import memories_pb2 as memories
from palimpsest.v1 import memory_service_pb2, memory_service_pb2_grpc

#: Of a PRISM memory.
SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"


async def refusal(
    client: palimpsest.Client, method: Any, request: Any
) -> palimpsest.PalimpsestError:
    """Returns what a call is refused with: one line."""
    with pytest.raises(palimpsest.PalimpsestError) as caught:
        await client.call(method, request, retry=False)
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def calls_for_prism(session: str, memory: str) -> list[tuple[Any, str, Any]]:
    """Stub, name and request of calls that are for PRISM memories, asked of another one.

    `facts` is a PRISM memory of the session.
    """
    named: dict[str, Any] = {"session": session, "memory": memory}
    edits = [memory_service_pb2.Edit(path="$.a", value_json="1")]
    return [
        (
            memory_service_pb2_grpc.MemoryServiceStub,
            "EditMemory",
            memory_service_pb2.EditMemoryRequest(**named, edits=edits),
        ),
        (
            memory_service_pb2_grpc.MemoryServiceStub,
            "FoldMemory",
            memory_service_pb2.FoldMemoryRequest(**named),
        ),
        (
            memory_service_pb2_grpc.MemoryServiceStub,
            "ConsolidateMemory",
            memory_service_pb2.ConsolidateMemoryRequest(**named),
        ),
        (
            memory_service_pb2_grpc.MemoryServiceStub,
            "UpdateMemory",
            memory_service_pb2.UpdateMemoryRequest(
                memory=memories.Memory(
                    session=session, id=memory, prism=memories.PrismSpec(schema_source=SCHEMA)
                ),
                update_mask=FieldMask(paths=["prism.schema_source", "prism.model"]),
            ),
        ),
        (
            memory_service_pb2_grpc.MemoryServiceStub,
            "ListAmendments",
            memory_service_pb2.ListAmendmentsRequest(**named),
        ),
        (
            memory_service_pb2_grpc.MemoryServiceStub,
            "ListRejections",
            memory_service_pb2.ListRejectionsRequest(**named),
        ),
        (
            memory_service_pb2_grpc.MemoryServiceStub,
            "GetProvenance",
            memory_service_pb2.GetProvenanceRequest(**named, path="$.a"),
        ),
        (
            memory_service_pb2_grpc.MemoryServiceStub,
            "DiffMemories",
            memory_service_pb2.DiffMemoriesRequest(
                session=session, memory="facts", other_memory=memory
            ),
        ),
    ]
