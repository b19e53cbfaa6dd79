"""A live memory's schema gets more fields, and nothing else; and where two states differ."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prism.amending import MISSING, differences
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import Incompatible, check_extends, fit
from service.domain.values.json_values import canonical
from tests.unit.prism.schemas import schemas

OLD = """
class Notes:
    class Person:
        name: str
        age: int | None
    people: list[Person]
    pairs: dict[str, tuple[str, str]]
"""


@pytest.mark.parametrize(
    "new",
    [
        OLD,
        OLD + "    more: str\n",
        OLD.replace("age: int | None", "age: int | None\n        town: str"),
        OLD.replace("class Notes:", 'class Notes:\n    """Other guidance."""'),
        OLD.replace("Person", "Human"),
    ],
)
def test_fields_may_be_added_and_guidance_may_change(new: str) -> None:
    check_extends(parse_source(OLD), parse_source(new))


@pytest.mark.parametrize(
    ("new", "place", "why"),
    [
        (OLD.replace("        name: str\n", ""), "Notes.people.name", "missing"),
        (OLD.replace("int | None", "str"), "Notes.people.age", "it is int | None"),
        (OLD.replace("list[Person]", "dict[str, Person]"), "Notes.people", "would be dict"),
        (OLD.replace("tuple[str, str]", "tuple[str, int]"), "Notes.pairs", "would be int"),
        (OLD.replace("tuple[str, str]", "tuple[str]"), "Notes.pairs", "would be tuple"),
    ],
)
def test_what_would_not_hold_the_memory_is_refused_with_its_place(
    new: str, place: str, why: str
) -> None:
    with pytest.raises(Incompatible, match=why) as refused:
        check_extends(parse_source(OLD), parse_source(new))
    assert refused.value.place == place


@given(schemas())
def test_every_schema_extends_itself(schema: Any) -> None:
    check_extends(schema, schema)
    assert fit(schema.root, {}) == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a"]) | st.just(1.0),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)
MEMORIES = st.dictionaries(st.sampled_from("abc"), JSON)


@given(MEMORIES, MEMORIES)
def test_what_is_not_listed_is_equal(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Making every difference in the old state gives the new one, but for the keys' order."""
    made: Any = copy.deepcopy(old)
    found = list(differences(old, new))
    for one in reversed(found):
        # Backwards, so that what goes from the end of a list goes first.
        above: Any = made
        for token in one.path.tokens[:-1]:
            above = above[token]
        last: Any = one.path.tokens[-1]
        if one.new is MISSING:
            del above[last]
        elif one.old is not MISSING or isinstance(above, dict):
            above[last] = copy.deepcopy(one.new)
    for one in found:
        above = made
        for token in one.path.tokens[:-1]:
            above = above[token]
        if isinstance(above, list) and one.old is MISSING:
            above.append(copy.deepcopy(one.new))
    assert _sorted(made) == _sorted(new)
    assert (not found) == (_sorted(old) == _sorted(new))


def _sorted(value: Any) -> str:
    if isinstance(value, dict):
        inner = ",".join(f"{key!r}:{_sorted(value[key])}" for key in sorted(value))
        return f"dict({inner})"
    if isinstance(value, list):
        return f"list({','.join(map(_sorted, value))})"
    return canonical(value)
