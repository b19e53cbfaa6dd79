"""What distinguishes one request from another."""

from collections.abc import Iterator

import pytest
from google.protobuf import unknown_fields

from palimpsest.v1 import chunks_pb2, memory_service_pb2, session_service_pb2
from service.domain.access.identity import LOCAL_IDENTITY, acting_as
from service.domain.log.appending import ClientRequest
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.rpc.interceptors.idempotency import identified


@pytest.fixture(autouse=True)
def tenant() -> Iterator[None]:
    with acting_as(LOCAL_IDENTITY):
        yield


def edit(**fields: object) -> memory_service_pb2.FoldMemoryRequest:
    made = memory_service_pb2.FoldMemoryRequest(session="s", memory="m", request_id="r")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_the_id_is_no_part_of_the_content_and_stays_in_the_request() -> None:
    one, other = edit(), edit(request_id="other")
    assert identified("FoldMemory", one).digest == identified("FoldMemory", other).digest
    assert identified("FoldMemory", one) == ClientRequest(
        session_key=session_key(DEFAULT_TENANT, "s"),
        request_id="r",
        method="FoldMemory",
        digest=identified("FoldMemory", other).digest,
    )
    assert one.request_id == "r"


def test_other_content_has_another_digest() -> None:
    digests = {identified("FoldMemory", edit(memory=name)).digest for name in ("m", "n", "mm")}
    assert len(digests) == 3


def test_the_order_of_a_map_does_not_count() -> None:
    def append(keys: Iterator[str]) -> session_service_pb2.AppendRequest:
        chunk = chunks_pb2.Chunk(text="a")
        for key in keys:
            chunk.metadata[key] = key
        return session_service_pb2.AppendRequest(session="s", chunks=[chunk], request_id="r")

    keys = [f"k{number}" for number in range(16)]
    forth, back = append(iter(keys)), append(reversed(keys))
    # On the wire they have the order in which a client wrote them.
    wire = b"".join(
        chunks_pb2.Chunk(text="a", metadata={key: key}).SerializeToString(deterministic=True)[3:]
        for key in reversed(keys)
    )
    sent = chunks_pb2.Chunk.FromString(chunks_pb2.Chunk(text="a").SerializeToString() + wire)
    assert sent == back.chunks[0]
    assert identified("Append", forth).digest == identified("Append", back).digest
    back.chunks[0].CopyFrom(sent)
    assert identified("Append", forth).digest == identified("Append", back).digest


def test_a_field_that_a_server_does_not_know_counts_as_for_one_that_does() -> None:
    # As a release before `comment`, field 5, sees it, and one that has it.
    newer = memory_service_pb2.RollbackMemoryRequest(
        session="s", memory="m", comment="why", request_id=""
    )
    older = memory_service_pb2.FoldMemoryRequest.FromString(newer.SerializeToString())
    assert len(unknown_fields.UnknownFieldSet(older)) == 1
    assert identified("Fold", older).digest == identified("Fold", newer).digest
    assert identified("Fold", older).digest != identified("Fold", edit(request_id="")).digest


def test_what_is_about_the_sessions_of_a_tenant_is_kept_with_the_tenant() -> None:
    created = session_service_pb2.CreateSessionRequest(
        session=session_service_pb2.Session(id="s"), request_id="r"
    )
    of_tenant = session_key(DEFAULT_TENANT, "")
    assert identified("CreateSession", created).session_key == of_tenant
    updated = session_service_pb2.UpdateSessionRequest(session=created.session, request_id="r")
    assert identified("UpdateSession", updated).session_key == session_key(DEFAULT_TENANT, "s")
    assert identified("DeleteSession", edit()).session_key == of_tenant
    assert identified("FoldMemory", edit()).session_key == session_key(DEFAULT_TENANT, "s")
