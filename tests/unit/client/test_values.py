"""What the client makes of the proto's messages, and of a caller's values."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import palimpsest
from palimpsest import _history, _memories, _operations, _specs
from palimpsest._convert import value_of
from palimpsest._convert_answers import verdict
from palimpsest._convert_chunks import append_request
from palimpsest.v1 import answer_service_pb2, common_pb2
from palimpsest.v1 import memories_pb2 as v1

SETTINGS: list[tuple[str, tuple[str, ...]]] = [
    ("encoding", get_args(palimpsest.Encoding)),
    ("allowed_ops", get_args(palimpsest.AllowedOps)),
    ("coercion", get_args(palimpsest.Coercion)),
    ("reply_format", get_args(palimpsest.ReplyFormat)),
    ("steps", get_args(palimpsest.Steps)),
]
CHOICES = {name: st.sampled_from([None, *names]) for name, names in SETTINGS}


def spec(**given_: Any) -> v1.PrismSpec:
    wanted = {"linger": 0, "skip_failures": False, **given_}
    return _specs.prism_spec("class A:\n    x: str", **wanted)


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
        **choices,
        linger=None if linger is None else timedelta(milliseconds=linger),
        skip_failures=skip,
        memory_tokens=tokens,
    )
    info = _memories.memory(v1.Memory(prism=made))
    for name, names in SETTINGS:
        assert getattr(info, name) == (choices[name] or names[0])
    assert info.linger_seconds == (None if linger is None else linger / 1000)
    assert (info.skip_failures, info.memory_tokens) == (skip, tokens)


@pytest.mark.parametrize(("name", "names"), SETTINGS)
@pytest.mark.parametrize("wrong", ["no", "unspecified", "", 1, []])
def test_a_setting_that_is_none_is_one_clear_error(
    name: str, names: tuple[str, ...], wrong: object
) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be ") as caught:
        spec(**{name: wrong})
    allowed, _, shown = str(caught.value).removeprefix(f"{name} must be ").partition(", not ")
    assert sorted(allowed.split(" or ")) == sorted(map(repr, names))
    assert shown == repr(wrong)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (
            lambda: append_request("s", "x", {"foo": 0}, None, None),  # type: ignore[typeddict-unknown-key]
            TypeError,
            "there is no label 'foo'; there are thread, source, occurred_at, metadata",
        ),
        (
            lambda: append_request("s", "x", {"metadata": "ab"}, None, None),  # type: ignore[typeddict-item]
            ValueError,
            "item 1: metadata cannot be 'ab'",
        ),
        (lambda: verdict("maybe"), TypeError, "good must be True or False, not 'maybe'"),  # type: ignore[arg-type]
        (
            lambda: _history.edit_message(palimpsest.Edit("set", "$", 1)),  # type: ignore[arg-type]
            ValueError,
            "op must be 'put' or 'add' or 'update' or 'remove', not 'set'",
        ),
    ],
)
def test_a_value_that_cannot_be_sent_is_one_clear_error(
    make: Callable[[], object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        make()


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


NAMED = {"session": "s", "memory": "m"}


def test_a_rebuild_takes_over_what_is_not_named() -> None:
    changes = {"schema": {"type": "object"}, "task": "", "encoding": "in_place", "model": None}
    request = _operations.rebuild_request(NAMED, "n", "prism", changes, "r")
    paths = ["prism.task", "prism.encoding", "prism.json_schema"]
    assert (list(request.update_mask.paths), request.request_id) == (paths, "r")
    assert (request.new_memory.session, request.new_memory.id) == ("s", "n")
    assert request.new_memory.prism.json_schema == '{"type": "object"}'
    assert request.new_memory.prism.encoding == v1.PrismSpec.ENCODING_IN_PLACE
    with pytest.raises(ValueError, match="allowed_ops must be"):
        _operations.rebuild_request(NAMED, "n", "prism", {"allowed_ops": "none"}, "")


def test_a_rebuilt_tree_has_other_settings_or_another_model() -> None:
    settings = palimpsest.TreeSettings(max_children=3, model="a/b")
    whole = {"settings": settings, "model": "c/d"}
    request = _operations.rebuild_request(NAMED, "n", "tree", whole, "")
    assert list(request.update_mask.paths) == ["tree"]
    assert (request.new_memory.tree.max_children, request.new_memory.tree.model) == (3, "c/d")
    model = {"settings": None, "model": "c/d"}
    request = _operations.rebuild_request(NAMED, "n", "tree", model, "")
    assert list(request.update_mask.paths) == ["tree.model"]


def test_values_are_frozen() -> None:
    flushed = palimpsest.Flushed(read_token="t", head=1)
    with pytest.raises(AttributeError):
        flushed.head = 2  # type: ignore[misc]


def test_a_memory_is_read_with_its_value_and_where_it_was_read() -> None:
    point = common_pb2.ReadPoint(revision=3, applied_position=7, read_token="t")
    message = v1.Memory(prism=spec(), value_json='{"a": [1]}', read_point=point)
    state = _memories.memory_state(message)
    assert (state.value, state.revision, state.applied_position) == ({"a": [1]}, 3, 7)
    assert (state.read_token, state.info.kind, state.info.blocked) == ("t", "prism", None)


@pytest.mark.parametrize(
    ("number", "trust"), [(0, "trusted"), (1, "trusted"), (2, "unverified"), (9, "unknown")]
)
def test_a_citation_without_a_trust_is_of_a_trusted_source(number: int, trust: str) -> None:
    citation = answer_service_pb2.Citation(position=1, trust=number)  # type: ignore[arg-type]
    assert value_of(palimpsest.Citation, citation).trust == trust
