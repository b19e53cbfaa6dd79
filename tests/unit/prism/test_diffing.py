"""Differences: with them the old state becomes the new one, and nothing else does."""

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.domain.prism.amending import MISSING, ValueDifference, differences
from service.domain.values.paths import Path

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.just(1.0) | st.sampled_from(["", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=12,
)
STATE = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


def text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def patched(old: Any, found: list[ValueDifference]) -> Any:
    """`old` with the differences made; what lists lose goes from their ends."""
    value = copy.deepcopy(old)
    for one in found:
        if one.new is not MISSING:
            holder, token = _holder(value, one.path)
            if isinstance(holder, list) and token == len(holder):
                holder.append(one.new)
            else:
                holder[token] = one.new
    for one in reversed(found):
        if one.new is MISSING:
            holder, token = _holder(value, one.path)
            del holder[token]
    return value


def _holder(value: Any, path: Path) -> tuple[Any, Any]:
    for token in path.tokens[:-1]:
        value = value[token]
    return value, path.tokens[-1]


@given(old=STATE, new=STATE)
def test_the_differences_make_the_new_state_of_the_old_one(old: Any, new: Any) -> None:
    found = list(differences(old, new))
    assert text(patched(old, found)) == text(new)
    assert len({one.path for one in found}) == len(found)
    assert bool(found) == (text(old) != text(new))


@given(old=STATE, new=STATE)
def test_each_difference_holds_what_the_two_sides_have(old: Any, new: Any) -> None:
    turned = {one.path: (one.new, one.old) for one in differences(new, old)}
    assert {one.path: (one.old, one.new) for one in differences(old, new)} == turned
