"""What the client makes of revisions, amendments and edits."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest import Amendment, Edit, PositionRange, Revision, _history
from palimpsest._convert import value_of
from palimpsest.v1 import common_pb2, memories_pb2, memory_service_pb2

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(path=st.text(min_size=1), value=JSON)
def test_edits_say_what_they_were_made_of(path: str, value: Any) -> None:
    ops = {
        "put": memories_pb2.AMENDMENT_OP_UNSPECIFIED,
        "add": memories_pb2.AMENDMENT_OP_ADD,
        "update": memories_pb2.AMENDMENT_OP_UPDATE,
    }
    for name, op in ops.items():
        message = _history.edit_message(getattr(Edit, name)(path, value))
        assert (message.op, message.path) == (op, path)
        assert json.loads(message.value_json) == value
    gone = memory_service_pb2.Edit(op=memories_pb2.AMENDMENT_OP_REMOVE, path=path)
    assert _history.edit_message(Edit.remove(path)) == gone


@pytest.mark.parametrize(
    "value",
    [float("nan"), {1: "a"}, [{"a": {None: 1}}], object(), {"a": {1, 2}}, "\ud800", b"raw"],
)
def test_a_value_that_is_no_json_is_refused_with_its_path(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^the value for \$\.x is no JSON: "):
        _history.edit_message(Edit.put("$.x", value))


def test_a_value_within_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="is no JSON"):
        _history.edit_message(Edit.put("$.x", value))


@pytest.mark.parametrize(
    ("old", "new", "op"), [(None, "null", "add"), ("1", "2", "update"), ("null", None, "remove")]
)
def test_a_difference_distinguishes_nothing_from_null(
    old: str | None, new: str | None, op: str
) -> None:
    made = _history._difference(
        memory_service_pb2.DiffMemoriesResponse.Difference(path="$", old_json=old, new_json=new)
    )
    assert made.op == op


@given(
    revision=st.integers(0, 2**40),
    kind=st.sampled_from(sorted(memories_pb2.RevisionKind.values())[1:]),
    restored=st.none() | st.integers(0, 9),
    comment=st.text(),
)
def test_a_revision_keeps_all_it_says(
    revision: int, kind: int, restored: int | None, comment: str
) -> None:
    message = memories_pb2.Revision(
        revision=revision,
        kind=kind,  # type: ignore[arg-type]
        positions=common_pb2.PositionRange(first=2, last=3),
        comment=comment,
        restored_revision=restored,
        schema_source="class A: ...",
        amendment_count=3,
        rejection_count=4,
        value_digest=b"d" * 32,
        expired=True,
    )
    made = value_of(Revision, message)
    assert (made.revision, made.restored_revision, made.comment) == (revision, restored, comment)
    assert memories_pb2.RevisionKind.Name(kind) == f"REVISION_KIND_{made.kind.upper()}"  # type: ignore[arg-type]
    assert made.positions == PositionRange(first=2, last=3)
    assert made.schema_source == "class A: ..."
    assert (made.amendment_count, made.rejection_count, made.value_digest) == (3, 4, b"d" * 32)
    assert made.expired


def test_what_a_newer_service_says_is_unknown_and_no_failure() -> None:
    newer = memories_pb2.Amendment(op=77, kind=78, value_json="1")  # type: ignore[arg-type]
    made = value_of(Amendment, newer)
    assert (made.op, made.kind) == ("unknown", "unknown")
