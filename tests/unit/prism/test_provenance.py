"""Where a value came from, found by going back in time."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.domain.prism.amending import MISSING, amend, value_at
from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.provenance import Touch, ValueTracer, Write, origin, search_path
from service.domain.prism.schemas.source import parse_source
from service.domain.values.paths import Path

AT = Path(("topics", "a"))


def write(revision: int, path: Path, value: Any, op: Op = Op.UPDATE) -> Write:
    return Write(revision=revision, ordinal=1, path=path, op=op, value=value)


def touches(path: Path, writes: list[Write], *, exists: bool = True) -> list[Touch]:
    tracer = ValueTracer(path, exists=exists)
    return [touch for write in writes if (touch := tracer.touch(write))]


def revisions(found: list[Touch]) -> list[tuple[int, bool]]:
    return [(touch.write.revision, touch.in_effect) for touch in found]


def first(path: Path, value: Any, writes: list[Write]) -> int | None:
    found = origin(value, touches(path, writes))
    return None if found is None else found.revision


def test_a_value_comes_from_the_oldest_write_that_holds_it() -> None:
    writes = [
        write(9, AT, ["new", "old", "oldest"]),
        write(7, AT, ["old", "oldest"]),
        write(5, AT / 0, "oldest"),
        write(3, AT, ["something else"]),
        write(2, AT, ["old", "new"]),
    ]
    assert first(AT / 0, "new", writes) == 9
    assert first(AT / 1, "old", writes) == 7
    assert first(AT / 2, "nowhere", writes) is None


def test_what_was_replaced_as_a_whole_is_not_in_effect() -> None:
    writes = [
        write(5, AT / "x", 1),
        write(4, AT, {"x": 0, "y": 2}),
        write(3, AT / "y", 1),
        write(2, Path(("topics",)), {"a": {}}),
        write(1, Path(("other",)), 1),
    ]
    assert revisions(touches(AT, writes)) == [(5, True), (4, True), (3, False), (2, False)]
    assert revisions(touches(AT / "y", writes)) == [(4, True), (3, False), (2, False)]


def test_an_element_is_followed_through_removals_before_it() -> None:
    items = Path(("items",))
    writes = [
        write(5, items / 0, None, Op.REMOVE),
        write(4, items / 0, None, Op.REMOVE),
        write(3, items / 2, "c", Op.ADD),
        write(2, items / 1, "b", Op.ADD),
        write(1, items / 0, "a", Op.ADD),
    ]
    assert search_path(items / 0 / "x") == items
    assert revisions(touches(items / 0, writes)) == [(3, True)]
    assert first(items / 0, "c", writes) == 3
    assert revisions(touches(items / 0, writes[1:])) == [(2, True)]


def test_a_path_that_holds_nothing_is_explained_by_what_took_it_away() -> None:
    writes = [write(2, AT, None, Op.REMOVE), write(1, AT, ["x"], Op.ADD)]
    assert revisions(touches(AT, writes, exists=False)) == [(2, True), (1, False)]


SCHEMA = parse_source("class M:\n    items: list[str]\n    notes: dict[str, list[str]]\n")
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["items", "notes"]), st.sampled_from("ab"), st.integers(0, 3), st.booleans()
    ),
    max_size=25,
)


@given(CHANGES)
def test_every_element_is_traced_to_the_amendment_that_brought_it(
    changes: list[tuple[str, str, int, bool]],
) -> None:
    value: Any = {}
    log: list[Write] = []
    for number, (field, key, index, removes) in enumerate(changes, start=1):
        at = Path((field,)) if field == "items" else Path((field, key))
        held = value_at(value, at)
        count = len(held) if isinstance(held, list) else 0
        removes = removes and index < count
        op = Op.REMOVE if removes else Op.UPDATE if index < count else Op.ADD
        place = at / (index if op is not Op.ADD else count)
        new = None if removes else f"v{number}"
        one = Amendment(path=place, op=op, value=new)
        value = amend(SCHEMA, value, [one])
        log.append(write(number, place, new, op))
    log.reverse()
    for at in (Path(("items",)), Path(("notes", "a")), Path(("notes", "b"))):
        held = value_at(value, at)
        for index, text in enumerate(held if isinstance(held, list) else []):
            assert value_at(value, at / index) is not MISSING
            relevant = [w for w in log if w.path.tokens[: len(at.tokens)] == at.tokens]
            assert first(at / index, text, relevant) == int(str(text)[1:])


def test_null_does_not_come_from_a_write_that_says_nothing_of_it() -> None:
    writes = [write(5, AT / "x", None), write(3, AT, {"y": 1}), write(2, AT, {"x": None})]
    assert first(AT / "x", None, writes) == 5
    assert first(AT / "x", None, writes[:2]) == 5


@given(st.data())
def test_what_is_in_effect_is_the_same_however_much_was_replaced(data: st.DataObject) -> None:
    steps = st.lists(st.sampled_from(["a", "b", "c"]), min_size=0, max_size=3)
    paths = data.draw(st.lists(steps.map(lambda keys: Path(tuple(keys))), max_size=30))
    path = Path(("a", "b"))
    writes = [write(len(paths) - n, one, 1) for n, one in enumerate(paths)]
    replaced: list[Path] = []
    for touch in touches(path, writes):
        region = max(touch.write.path, path, key=lambda one: len(one.tokens))
        covered = any(region.tokens[: len(one.tokens)] == one.tokens for one in replaced)
        assert touch.in_effect == (not covered)
        replaced.append(touch.write.path)


def test_a_place_is_traced_through_any_number_of_writes() -> None:
    writes = [write(n, Path((f"t{n}",)), "x") for n in range(20_000, 0, -1)]
    assert all(touch.in_effect for touch in touches(Path(), writes))
