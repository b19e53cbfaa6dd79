"""The default memory: its schema, and what the offline model makes of it."""

from typing import Any

from service.domain.prism.default_memory import SCHEMA, SPEC, TASK
from service.domain.prism.memory import PrismMemory
from service.domain.prism.schemas.json_writing import to_json_schema
from service.domain.prism.spec import PrismSpec
from service.rpc.convert import specs
from tests.unit.docs.test_prism_docs import default_fields


def shape() -> Any:
    """Returns the schema as JSON Schema."""
    return to_json_schema(SPEC.schema())


def test_all_fields_have_one_type_and_begin_empty() -> None:
    fields = shape()["properties"].values()
    types = [{key: value for key, value in one.items() if key != "description"} for one in fields]
    assert len(types) == 6
    assert all(one == types[0] for one in types)
    assert all(one["description"] for one in fields)
    assert PrismMemory.create(SPEC.schema()).value_json == "{}"
    assert SPEC.shown_schema() == SCHEMA, "models see it as it is written"


def test_the_guide_has_its_fields() -> None:
    assert default_fields() == [*shape()["properties"]]


def test_it_could_be_created_over_the_api_with_the_same_settings() -> None:
    assert specs.prism_spec(specs.prism_message(SPEC)) == SPEC
    assert PrismSpec.from_json(SPEC.to_json()) == SPEC


def test_the_task_is_bounded() -> None:
    # It is in every prompt of every such memory.
    assert len(TASK) + len(SCHEMA) < 3500
