"""Statements that are compiled once."""

from typing import Any

import pytest
from psycopg.types.json import Jsonb
from sqlalchemy import bindparam, select, update

from storage.engine.ready import Ready
from storage.memories.revision_statements import moving
from storage.tables import memory


def test_what_is_always_the_same_need_not_be_given() -> None:
    ready = Ready(
        select(memory.c.name).where(memory.c.status == "active", memory.c.kind == bindparam("of"))
    )
    assert ready.values({"of": "tree"}) == {"status_1": "active", "of": "tree"}
    assert "memory.status = %(status_1)s" in ready.text
    assert "memory.kind = %(of)s" in ready.text


@pytest.mark.parametrize("given", [{"folds": 3}, {}, None])
def test_json_goes_as_json_and_nothing_as_null(given: Any) -> None:
    ready = Ready(update(memory).values(fold_state=bindparam("counted")))
    (value,) = ready.values({"counted": given}).values()
    if given is None:
        assert value is None
    else:
        assert isinstance(value, Jsonb)
        assert value.obj == given


def test_what_a_step_compares_is_compared_whatever_it_changes() -> None:
    for names in (("revision",), ("revision", "fold_state"), ("revision", "status")):
        for by_hand in (True, False):
            text = moving(names, by_hand=by_hand, consolidates=False).text
            for column in ("epoch", "revision", "applied_position"):
                assert f"memory.{column} = %(held_{column})s" in text
            assert "memory.seal_position IS NOT DISTINCT FROM" in text
            assert ("memory.status = %(" in text) is not by_hand
