"""What the client makes of the proto's messages, and of a caller's values."""

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import palimpsest
from palimpsest import Edit, _convert_info, _convert_memories, _convert_operations, _convert_specs
from palimpsest.v1 import memories_pb2 as v1
from palimpsest.v1alpha1 import edits_pb2, history_pb2, memories_pb2

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
SETTINGS: list[tuple[str, dict[Any, Any]]] = [
    ("encoding", _convert_specs.ENCODINGS),
    ("allowed_ops", _convert_specs.ALLOWED_OPS),
    ("coercion", _convert_specs.COERCIONS),
    ("reply_format", _convert_specs.REPLY_FORMATS),
    ("steps", _convert_specs.STEPS),
]
CHOICES = {name: st.sampled_from([None, *table]) for name, table in SETTINGS}


def spec(**given_: Any) -> v1.PrismSpec:
    wanted = {"choices": {}, "linger": 0, "skip_failures": False, **given_}
    return _convert_specs.prism_spec("class A:\n    x: str", **wanted)


@given(
    choices=st.fixed_dictionaries(CHOICES),
    linger=st.none() | st.integers(0, 3_600_000),
    skip=st.booleans(),
    tokens=st.integers(0, 1_000_000),
)
def test_settings_come_back_as_they_were_given(
    choices: dict[str, str | None], linger: int | None, skip: bool, tokens: int
) -> None:
    made = spec(
        choices=choices,
        linger=None if linger is None else timedelta(milliseconds=linger),
        skip_failures=skip,
        memory_tokens=tokens,
    )
    info = _convert_info.memory(v1.Memory(prism=made))
    for name, table in SETTINGS:
        assert getattr(info, name) == (choices[name] or next(iter(table)))
    assert info.linger_seconds == (None if linger is None else linger / 1000)
    assert (info.skip_failures, info.memory_tokens) == (skip, tokens)


@pytest.mark.parametrize(("name", "table"), SETTINGS)
def test_a_setting_that_is_none_is_one_clear_error(name: str, table: dict[str, int]) -> None:
    first, second, *_ = table
    with pytest.raises(ValueError, match=f"^{name} must be '{first}' or '{second}'.*, not 'no'$"):
        spec(choices={name: "no"})


@pytest.mark.parametrize("linger", [-1, float("nan"), float("inf"), timedelta(seconds=-1)])
def test_a_linger_that_is_no_duration_is_refused(linger: Any) -> None:
    with pytest.raises(ValueError, match="linger must be a number of seconds"):
        spec(linger=linger)


def test_a_schema_is_class_source_or_json_schema() -> None:
    assert palimpsest.schema_fields("class A: ...") == {"schema_source": "class A: ..."}
    document = {"type": "object", "title": "Ä"}
    assert json.loads(palimpsest.schema_fields(document)["json_schema"]) == document
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        palimpsest.schema_fields({"default": float("nan")})


@given(path=st.text(min_size=1), value=JSON)
def test_edits_say_what_they_were_made_of(path: str, value: Any) -> None:
    ops = {
        "put": memories_pb2.AMENDMENT_OP_UNSPECIFIED,
        "add": memories_pb2.AMENDMENT_OP_ADD,
        "update": memories_pb2.AMENDMENT_OP_UPDATE,
    }
    for name, op in ops.items():
        message = _convert_memories.edit_message(getattr(Edit, name)(path, value))
        assert (message.op, message.path) == (op, path)
        assert json.loads(message.value_json) == value
    gone = edits_pb2.Edit(op=memories_pb2.AMENDMENT_OP_REMOVE, path=path)
    assert _convert_memories.edit_message(Edit.remove(path)) == gone


@pytest.mark.parametrize(
    "value",
    [float("nan"), {1: "a"}, [{"a": {None: 1}}], object(), {"a": {1, 2}}, "\ud800", b"raw"],
)
def test_a_value_that_is_no_json_is_refused_with_its_path(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^the value for \$\.x is no JSON: "):
        _convert_memories.edit_message(Edit.put("$.x", value))


def test_a_value_within_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="is no JSON"):
        _convert_memories.edit_message(Edit.put("$.x", value))


@pytest.mark.parametrize(
    ("old", "new", "op"), [(None, "null", "add"), ("1", "2", "update"), ("null", None, "remove")]
)
def test_a_difference_tells_nothing_from_null(old: str | None, new: str | None, op: str) -> None:
    made = _convert_memories._difference(
        history_pb2.Difference(path="$", old_json=old, new_json=new)
    )
    assert made.op == op


@given(
    revision=st.integers(0, 2**40),
    kind=st.sampled_from(sorted(_convert_memories._KINDS.values())),
    restored=st.none() | st.integers(0, 9),
    comment=st.text(),
)
def test_a_revision_keeps_all_it_says(
    revision: int, kind: int, restored: int | None, comment: str
) -> None:
    message = history_pb2.Revision(
        revision=revision,
        kind=kind,  # type: ignore[arg-type]
        from_position=1,
        to_position=2,
        comment=comment,
        restored_revision=restored,
        schema_source="class A: ...",
        amendments=3,
        rejections=4,
        value_digest=b"d" * 32,
    )
    made = _convert_memories.revision(message)
    assert (made.revision, made.restored_revision, made.comment) == (revision, restored, comment)
    assert memories_pb2.RevisionKind.Name(kind) == f"REVISION_KIND_{made.kind.upper()}"  # type: ignore[arg-type]
    assert (made.from_position, made.to_position, made.schema_source) == (1, 2, "class A: ...")
    assert (made.amendments, made.rejections, made.value_digest) == (3, 4, b"d" * 32)


def test_what_a_newer_service_says_is_unknown_and_no_failure() -> None:
    newer = memories_pb2.Amendment(op=77, kind=78, value_json="1")  # type: ignore[arg-type]
    made = _convert_memories.amendment(newer)
    assert (made.op, made.kind) == ("unknown", "unknown")


NAMED = {"session": "s", "memory": "m"}


def test_a_rebuild_takes_over_what_is_not_named() -> None:
    changes = {"schema": {"type": "object"}, "task": "", "encoding": "in_place", "model": None}
    request = _convert_operations.rebuild_request(NAMED, "n", "prism", changes, "r")
    paths = ["prism.task", "prism.encoding", "prism.json_schema"]
    assert (list(request.update_mask.paths), request.request_id) == (paths, "r")
    assert (request.new_memory.session, request.new_memory.id) == ("s", "n")
    assert request.new_memory.prism.json_schema == '{"type": "object"}'
    assert request.new_memory.prism.encoding == v1.PrismSpec.ENCODING_IN_PLACE
    with pytest.raises(ValueError, match="allowed_ops must be"):
        _convert_operations.rebuild_request(NAMED, "n", "prism", {"allowed_ops": "none"}, "")


def test_a_rebuilt_tree_has_other_settings_or_another_model() -> None:
    settings = palimpsest.TreeSettings(max_children=3, model="a/b")
    whole = {"settings": settings, "model": "c/d"}
    request = _convert_operations.rebuild_request(NAMED, "n", "tree", whole, "")
    assert list(request.update_mask.paths) == ["tree"]
    assert (request.new_memory.tree.max_children, request.new_memory.tree.model) == (3, "c/d")
    model = {"settings": None, "model": "c/d"}
    request = _convert_operations.rebuild_request(NAMED, "n", "tree", model, "")
    assert list(request.update_mask.paths) == ["tree.model"]


def test_values_are_frozen() -> None:
    flushed = palimpsest.Flushed(read_token="t", head=1)
    with pytest.raises(AttributeError):
        flushed.head = 2  # type: ignore[misc]
