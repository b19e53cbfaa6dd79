"""Orders keys so that those that seldom change are first, once that is known and pays."""

from hypothesis import given
from hypothesis import strategies as st

from service.domain.prism import ordering
from service.domain.prism.ordering import Changes, arranged, ordered
from service.domain.values.json_values import Json, canonical

HOT = Changes(folds=8, counts={("hot",): 7})
VALUE: Json = {"hot": "x", "cold": "y" * 400, "cool": "z" * 400}
MOVED: Json = {"cold": "y" * 400, "cool": "z" * 400, "hot": "x"}

keys = st.text("abc", max_size=3)
values = st.recursive(
    st.integers(0, 9),
    lambda inner: st.dictionaries(keys, inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=12,
)
changes = st.builds(
    lambda counts: Changes(folds=9, counts=counts),
    st.dictionaries(st.lists(keys, min_size=1, max_size=2).map(tuple), st.integers(1, 9)),
)


def same(one: Json, other: Json) -> bool:
    # A dict equals another whatever the order of their keys.
    return one == other


@given(values, changes)
def test_only_the_order_changes(value: Json, seen: Changes) -> None:
    new = ordered("{}", value, seen, is_cold=True)
    assert same(new, value)
    assert sorted(canonical(new)) == sorted(canonical(value))
    assert canonical(arranged(arranged(value, seen), seen)) == canonical(arranged(value, seen))


def test_what_changes_often_goes_to_the_end() -> None:
    assert canonical(arranged(VALUE, HOT)) == canonical(MOVED)
    assert canonical(ordered(canonical(VALUE), VALUE, HOT, is_cold=False)) == canonical(MOVED)


def test_a_large_value_stands_before_a_small_one_that_changes_as_often() -> None:
    both = Changes(folds=8, counts={("hot",): 5, ("cold",): 5})
    assert list(arranged(VALUE, both)) == ["cool", "cold", "hot"]  # type: ignore[arg-type]


def test_keys_are_left_while_little_is_known() -> None:
    new = Changes(folds=ordering.MIN_FOLDS - 1, counts={("hot",): ordering.MIN_FOLDS - 1})
    assert ordered("{}", VALUE, new, is_cold=True) is VALUE
    once = Changes(folds=8, counts={("hot",): 1})
    assert ordered("{}", VALUE, once, is_cold=True) is VALUE


def test_keys_are_left_when_moving_them_costs_more_than_it_will_save() -> None:
    seen = Changes(folds=5, counts={("hot",): 2})
    value: Json = {"first": "y" * 4000, "hot": "x" * 300, "last": "z" * 400}
    as_is = canonical(value)
    assert ordered(as_is, value, seen, is_cold=False) is value
    assert list(ordered(as_is, value, seen, is_cold=True)) == ["first", "last", "hot"]  # type: ignore[arg-type]


def test_objects_within_the_memory_are_ordered_and_lists_are_not() -> None:
    value: Json = {"topics": {"hot": 1, "cold": 2}, "list": [{"b": 1, "a": 2}]}
    seen = Changes(folds=8, counts={("topics", "hot"): 6, ("list",): 7})
    assert canonical(arranged(value, seen)) == (
        '{"topics":{"cold":2,"hot":1},"list":[{"b":1,"a":2}]}'
    )


def test_a_fold_counts_what_it_finds_changed_and_where_keys_came() -> None:
    old: Json = {"a": 1, "b": {"c": 1, "d": 2}, "gone": 3}
    new: Json = {"a": 1, "b": {"c": 2, "d": 2, "e": 3}}
    seen = Changes().since(old, new)
    assert seen == Changes(folds=1, counts={("b",): 1, ("b", ""): 1, ("b", "c"): 1})
    assert seen.since(old, new).counts[("b", "c")] == 2


def test_old_habits_are_forgotten() -> None:
    seen = Changes()
    for number in range(ordering.MEMORY_FOLDS + 1):
        seen = seen.since({"a": 0, "b": 0}, {"a": 1, "b": number})
    assert seen.folds == (ordering.MEMORY_FOLDS + 1) // 2
    assert seen.counts[("a",)] == (ordering.MEMORY_FOLDS + 1) // 2
    assert ("b",) in seen.counts


def test_few_keys_are_counted_however_many_there_are() -> None:
    old: Json = {f"k{n}": 0 for n in range(500)}
    new: Json = {f"k{n}": 1 for n in range(500)}
    seen = Changes(folds=2, counts={("k499",): 2}).since(old, new)
    assert len(seen.counts) == ordering.MAX_KEYS
    assert seen.counts[("k499",)] == 3


@given(changes)
def test_counts_are_read_back_as_they_were_written(seen: Changes) -> None:
    assert Changes.from_json(seen.to_json()) == seen
