"""Edits by hand: judged in one pass as they would be one after the other."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prism.amendments import Amendment, Op, Proposal, Rules
from service.domain.prism.memory import PrismMemory
from service.domain.prism.revisions import InvalidEdit, edited
from service.domain.prism.schemas.source import parse_source
from service.domain.values.json_values import Json
from tests.unit.prism.judging import judged

SCHEMA = parse_source("class A:\n    x: int\n    names: list[str]\n    by: dict[str, int]\n")
RULES = Rules(may_remove=True, max_memory_bytes=60)
PATHS = ["$.x", "$.names[0]", "$.names[1]", "$.names", "$.by.'a'", "$.by.'b'", "$.no"]
VALUES: list[Json] = [1, 2, "a", "long" * 9, ["a"], ["a", "b"], {}, None]
EDITS = st.lists(
    st.builds(
        lambda path, op, value: Proposal(path, op, None if op is Op.REMOVE else value),
        st.sampled_from(PATHS),
        st.sampled_from([None, Op.ADD, Op.UPDATE, Op.REMOVE]),
        st.sampled_from(VALUES),
    ),
    max_size=8,
)


def one_by_one(proposals: list[Proposal]) -> list[Amendment]:
    """Returns the same, each edit for itself. Raises Refused."""
    memory = PrismMemory.create(SCHEMA)
    amendments: list[Amendment] = []
    for number, proposal in enumerate(proposals):
        made = judged([proposal], SCHEMA, memory.value, RULES)
        if made.rejections:
            if made.rejections[0].reason == "it changes nothing":
                continue
            raise InvalidEdit(number, made.rejections[0].reason)
        amendments += made.amendments
        memory = memory.apply(number + 1, made.amendments)
    return amendments


@given(proposals=EDITS)
def test_they_come_to_what_they_come_to_one_by_one(proposals: list[Proposal]) -> None:
    def outcome(judge: Any) -> Any:
        try:
            return list(judge(proposals))
        except InvalidEdit as error:
            return error.number, str(error)

    together = outcome(lambda all_: edited(all_, SCHEMA, PrismMemory.create(SCHEMA).value, RULES))
    assert together == outcome(one_by_one)


def test_the_first_that_is_wrong_is_named() -> None:
    edits = [Proposal("$.x", None, 1), Proposal("$.x", None, 1), Proposal("$.x", None, "a")]
    with pytest.raises(InvalidEdit, match="not int") as caught:
        edited(edits, SCHEMA, {}, RULES)
    assert caught.value.number == 2
