"""Refusals as they are sent: whole, and never larger than gRPC's trailers may be."""

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from service.domain.values.errors import InvalidInput, NotFound, PalimpsestError, SchemaInvalid
from service.domain.values.reasons import Reason
from service.rpc.errors import abort_arguments

#: What gRPC takes for sure; it drops what is larger, at random first.
TRAILER_BYTES = 8192


def sent_bytes(error: PalimpsestError) -> int:
    """Counts as HTTP/2 does: the message percent-encoded, the status in base 64."""
    _, message, ((_, packed),) = abort_arguments(error)
    encoded = sum(1 if 32 <= byte < 127 else 3 for byte in message.encode())
    return encoded + len(packed) * 4 // 3


@pytest.mark.parametrize("character", ["x", "é", "語", "🙂", "\0", "\ud800"])
def test_a_refusal_of_a_long_path_says_where_and_why(character: str) -> None:
    path = "$." + character * 20_000
    refused = InvalidInput(
        Reason.EDIT_INVALID,
        f"edit 1, {path}: the memory has no such field",
        {"edit": "1", "path": path},
        field="edits[0].path",
    )
    code, message, ((_, packed),) = abort_arguments(refused)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert message.startswith("edit 1, $.")
    assert message.endswith(": the memory has no such field")
    assert " … " in message
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    details = status_pb2.Status.FromString(packed).details
    assert details[0].Unpack(info)
    assert details[1].Unpack(bad)
    assert info.metadata["edit"] == "1"
    assert info.metadata["path"].startswith("$.")
    assert bad.field_violations[0].description == message
    assert sent_bytes(refused) < TRAILER_BYTES


@given(st.text(max_size=1000), st.text(max_size=1000), st.text(max_size=50))
def test_what_a_client_sent_does_not_make_a_refusal_too_large(a: str, b: str, c: str) -> None:
    long = (a + b) * 20 + c
    pointer = f"/properties/{c}" * 30
    for refused in (
        NotFound(Reason.MEMORY_NOT_FOUND, long, {"session": long, "memory": c}),
        InvalidInput(Reason.PATH_INVALID, c + long, {"path": long}, field="path"),
        SchemaInvalid(long, pointer=pointer, field="json_schema"),
    ):
        assert sent_bytes(refused) < TRAILER_BYTES


def test_a_short_refusal_is_sent_as_it_is() -> None:
    _, message, _ = abort_arguments(InvalidInput(Reason.PATH_INVALID, "'x': é 🙂", {"path": "x"}))
    assert message == "'x': é 🙂"
