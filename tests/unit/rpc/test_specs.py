"""Specs of requests: what is refused before anything reads it."""

from collections.abc import Callable

import pytest

from palimpsest.v1 import edits_pb2, memories_pb2
from service.domain.errors import SchemaInvalid
from service.domain.prism.spec import PrismSpec, Steps
from service.domain.schemas.limits import MAX_JSON_BYTES, MAX_REQUEST_BYTES
from service.rpc import specs

SMALL = "class A:\n    a: str\n"


def _spec(source: str) -> object:
    return specs.prism_spec(memories_pb2.PrismSpec(schema_source=source))


def _rebuilt(source: str) -> object:
    return specs.rebuilt(edits_pb2.RebuildMemoryRequest(schema_source=source))


@pytest.mark.parametrize("take", [lambda source: specs.schema_of(source, ""), _spec, _rebuilt])
def test_class_source_that_no_request_may_carry_is_not_read(take: Callable[[str], object]) -> None:
    longest = SMALL + "#" * (MAX_REQUEST_BYTES - len(SMALL))
    assert take(longest)
    with pytest.raises(SchemaInvalid, match="more than 65536 bytes"):
        take(f"{longest}#")


def test_a_final_task_goes_in_and_comes_back() -> None:
    spec = specs.prism_spec(memories_pb2.PrismSpec(schema_source=SMALL, final_task="One number."))
    assert spec.final_task == "One number."
    assert specs.prism_message(spec).final_task == "One number."
    assert "final_task" not in PrismSpec(schema_source=SMALL).to_json(), "for the release before"


def test_what_steps_are_shown_goes_in_and_comes_back() -> None:
    spec = PrismSpec(schema_source=SMALL)
    assert specs.prism_message(spec).steps == memories_pb2.PrismSpec.STEPS_WHOLE
    assert "steps" not in spec.to_json(), "for the release before"
    message = memories_pb2.PrismSpec(
        schema_source=SMALL, steps=memories_pb2.PrismSpec.STEPS_FOCUSED
    )
    spec = specs.prism_spec(message)
    assert spec.steps is Steps.FOCUSED
    assert specs.prism_message(spec).steps == memories_pb2.PrismSpec.STEPS_FOCUSED
    assert PrismSpec.from_json(spec.to_json()) == spec
    changed = edits_pb2.RebuildMemoryRequest(
        session="s", memory="m", new_memory="n", steps=memories_pb2.PrismSpec.STEPS_FOCUSED
    )
    assert specs.rebuilt(changed).prism == {"steps": Steps.FOCUSED}


def test_json_schema_that_no_request_may_carry_is_not_read() -> None:
    with pytest.raises(SchemaInvalid, match="more than 262144 bytes"):
        specs.schema_of("", "\0" * (MAX_JSON_BYTES + 1))
