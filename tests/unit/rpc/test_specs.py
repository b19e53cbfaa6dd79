"""Refuses requests whose specs no request may carry, before anything reads them."""

from collections.abc import Callable

import pytest

from palimpsest.v1 import memories_pb2
from service.domain.prism.schemas.limits import MAX_JSON_BYTES, MAX_REQUEST_BYTES
from service.domain.prism.spec import MEMORY_TOKENS, SERVICE_LINGER_MS, PrismSpec, StepScope
from service.domain.values.errors import SchemaInvalid
from service.rpc.convert import specs

SMALL = "class A:\n    a: str\n"


def _spec(source: str) -> object:
    return specs.prism_spec(memories_pb2.PrismSpec(schema_source=source))


@pytest.mark.parametrize("take", [lambda source: specs.schema_of(source, ""), _spec])
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


def test_the_budget_is_said_when_a_memory_is_made() -> None:
    spec = specs.prism_spec(memories_pb2.PrismSpec(schema_source=SMALL))
    assert spec.memory_tokens == MEMORY_TOKENS == spec.to_json()["memory_tokens"]
    assert specs.prism_message(spec).memory_tokens == MEMORY_TOKENS
    # A memory of an earlier release has none, and shows none.
    assert specs.prism_message(PrismSpec(schema_source=SMALL)).memory_tokens == 0


@pytest.mark.parametrize("said", [None, 0, 1, 3_600_000])
def test_a_linger_that_is_not_said_is_another_than_none(said: int | None) -> None:
    message = memories_pb2.PrismSpec(schema_source=SMALL)
    if said is not None:
        message.linger.FromMilliseconds(said)
    spec = PrismSpec.from_json(specs.prism_spec(message).to_json())
    shown = specs.prism_message(spec)
    assert shown.HasField("linger") == (said is not None)
    assert shown.linger.ToMilliseconds() == (said or 0)
    assert spec.linger_ms == (SERVICE_LINGER_MS if said is None else said)


def test_the_release_before_takes_a_linger_that_is_not_said_for_none() -> None:
    # It divides it by 1000, and looks whether the first chunk is that old already.
    assert PrismSpec(schema_source=SMALL, linger_ms=SERVICE_LINGER_MS).to_json()["linger_ms"] < 0


def test_what_steps_are_shown_goes_in_and_comes_back() -> None:
    spec = PrismSpec(schema_source=SMALL)
    assert specs.prism_message(spec).steps == memories_pb2.PrismSpec.STEPS_WHOLE
    assert "steps" not in spec.to_json(), "for the release before"
    message = memories_pb2.PrismSpec(
        schema_source=SMALL, steps=memories_pb2.PrismSpec.STEPS_FOCUSED
    )
    spec = specs.prism_spec(message)
    assert spec.steps is StepScope.FOCUSED
    assert specs.prism_message(spec).steps == memories_pb2.PrismSpec.STEPS_FOCUSED
    assert PrismSpec.from_json(spec.to_json()) == spec


def test_json_schema_that_no_request_may_carry_is_not_read() -> None:
    with pytest.raises(SchemaInvalid, match="more than 262144 bytes"):
        specs.schema_of("", "\0" * (MAX_JSON_BYTES + 1))
