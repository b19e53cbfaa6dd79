"""Which amendments a thinned day does without."""

import pytest

from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.thinning import superseded
from service.domain.values.paths import Path

PUT, REMOVE = Op.UPDATE, Op.REMOVE


@pytest.mark.parametrize(
    ("written", "gone"),
    [
        ([(1, "$.a", PUT), (2, "$.a", PUT)], {1}),
        ([(1, "$.a", PUT), (2, "$.b", PUT)], set()),
        # A later one writes what is around it, or is within it.
        ([(1, "$.a.b", PUT), (2, "$.a", PUT)], {1}),
        ([(1, "$.a", PUT), (2, "$.a.b", PUT)], set()),
        ([(1, "$.a", PUT), (2, "$.a", REMOVE)], {1}),
        ([(1, "$.a", PUT), (1, "$.a", PUT)], set()),
        ([(1, "$.a", PUT), (1, "$.a", PUT), (2, "$.a", PUT)], {1}),
        # Elements of a list move up when one goes.
        ([(1, "$.l[1]", PUT), (2, "$.l[0]", REMOVE), (3, "$.l[1]", PUT)], set()),
        ([(1, "$.l[1]", PUT), (2, "$.l[0]", REMOVE), (3, "$.l", PUT)], {1}),
        ([(1, "$.l[1]", PUT), (3, "$.l[1]", PUT), (4, "$.l[0]", REMOVE)], {1}),
        ([(1, "$.a", PUT), (2, "$", PUT)], {1}),
    ],
)
def test_what_a_later_revision_replaced_as_a_whole(
    written: list[tuple[int, str, Op]], gone: set[int]
) -> None:
    amendments = {
        (revision, ordinal): Amendment(path=Path.parse(path), op=op, value="x")
        for ordinal, (revision, path, op) in enumerate(written, start=1)
    }
    assert {revision for revision, _ in superseded(amendments)} == gone
