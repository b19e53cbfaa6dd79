"""Episodes and rollbacks of state memories, against the plain model."""

from dataclasses import replace

import pytest

from service.domain.state.vectors import TASK_REVISION, VectorLevels
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database
from storage.memories import revisions
from storage.memories.revisions import NewRevision
from storage.state import vectors
from tests.integration.support.scripted import (
    ITEM,
    KEY,
    MEMORY,
    STATE,
    Script,
    make,
    read,
    state_method,
)
from tests.integration.support.stepping import (
    Plain,
    append_steps,
    assert_is_algorithm_1,
    lines_of,
    row_of,
    state_at,
    step,
    vectors_of,
)
from tests.support.contents import content_of


async def roll_back(database: Database, to_revision: int) -> None:
    """Rolls back as the RPC does."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.lock(tx, KEY, MEMORY)
        assert held is not None
        old = await vectors.read_state(tx, KEY, MEMORY, to_revision)
        assert old is not None
        new = NewRevision(
            kind="rollback",
            to_position=held.applied_position,
            digest=old.digest,
            restored_revision=to_revision,
        )
        await vectors.commit(tx, held, new, old.levels, None, has_work=None)


@pytest.mark.prove
@pytest.mark.parametrize("many", [2, 3])
@pytest.mark.parametrize("at_once", [True, False])
async def test_full_levels_become_the_next_vector_above_them(
    database: Database, many: int, at_once: bool
) -> None:
    spec = replace(STATE, episode_vectors=many)
    await make(database, [], spec)
    script, plain = Script(), Plain(spec, iter([]))
    batches = [(1, 121)] if at_once else [(first, 11) for first in range(1, 122, 11)]
    for first, count in batches:
        await append_steps(database, count, first=first)
        assert await state_method(database, script).drain(ITEM) is None
    plain.asks = iter(script.asked)
    for position in range(1, batches[-1][0] + batches[-1][1]):
        plain.read(position, step(position).as_text())
    stored = await read(database)
    state = await state_at(database, stored.revision)
    found = await vectors_of(database)
    assert_is_algorithm_1(plain, await lines_of(database), found, state)
    assert max(one.level for one in found) >= 4
    assert not (await row_of(database)).has_work


async def test_what_an_episode_stands_for(database: Database) -> None:
    await make(database, [], STATE, episode_vectors=2)
    await append_steps(database, 24)
    await state_method(database, Script()).drain(ITEM)
    found = {one.revision: one for one in await vectors_of(database)}
    places = {
        number: (one.level, one.after_position, one.from_position, one.to_position, one.children)
        for number, one in found.items()
    }
    assert places == {
        1: (1, 0, 0, 3, ()),
        2: (1, 0, 3, 6, ()),
        3: (2, 0, 0, 6, (1, 2)),
        4: (1, 6, 6, 9, ()),
        5: (1, 6, 9, 12, ()),
        6: (2, 0, 6, 12, (4, 5)),
        7: (3, 0, 0, 12, (3, 6)),
        8: (1, 12, 12, 15, ()),
        9: (1, 12, 15, 18, ()),
        10: (2, 12, 12, 18, (8, 9)),
        11: (1, 18, 18, 21, ()),
        12: (1, 18, 21, 24, ()),
        13: (2, 12, 18, 24, (11, 12)),
        14: (3, 0, 12, 24, (10, 13)),
        15: (4, 0, 0, 24, (7, 14)),
    }
    behind_an_episode = await state_at(database, 15)
    assert [one.revision for one in behind_an_episode.stack] == [15, TASK_REVISION]
    assert behind_an_episode.current.text == STATE.task


async def test_an_episode_that_was_backed_off_is_made_though_no_step_comes(
    database: Database,
) -> None:
    await make(database, [], STATE, episode_vectors=2)
    await append_steps(database, 6)
    stops = CountingStop(3)
    assert await state_method(database, Script()).drain(ITEM, stop=stops) == 0.0  # type: ignore[arg-type]
    assert (await read(database)).revision == 2
    assert await state_method(database, Script()).drain(ITEM) is None
    assert [kind for _, kind, *_ in await lines_of(database)] == ["step", "step", "episode"]


class CountingStop:
    """Is set at the n-th look."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def is_set(self) -> bool:
        self.looks -= 1
        return self.looks <= 0


async def test_steps_continue_from_what_a_rollback_restored(database: Database) -> None:
    await make(database, [], STATE)
    await append_steps(database, 10)
    script = Script()
    await state_method(database, script).drain(ITEM)
    await roll_back(database, 1)
    assert (await state_at(database, 4)).applied_position == 9
    await append_steps(database, 2, first=11)
    await state_method(database, script).drain(ITEM)
    found = await vectors_of(database)
    assert (await lines_of(database))[3:] == [(4, "rollback", 9, 9), (5, "step", 9, 12)]
    content = content_of(script.asked[-1])
    assert content.current == found[0].text
    assert [position for position, _ in content.steps] == [10, 11, 12]
    assert (found[-1].after_position, found[-1].from_position) == (0, 9)


async def test_a_rollback_to_the_beginning_begins_with_the_task_prompt(
    database: Database,
) -> None:
    await make(database, [], STATE)
    await append_steps(database, 6)
    script = Script()
    await state_method(database, script).drain(ITEM)
    await roll_back(database, 0)
    await append_steps(database, 3, first=7)
    await state_method(database, script).drain(ITEM)
    assert content_of(script.asked[-1]).current_is_task
    vector = (await vectors_of(database))[-1]
    assert (vector.after_position, vector.from_position, vector.to_position) == (6, 6, 9)


async def test_episodes_continue_from_restored_levels(database: Database) -> None:
    await make(database, [], STATE, episode_vectors=2)
    await append_steps(database, 9)
    script = Script()
    await state_method(database, script).drain(ITEM)
    await roll_back(database, 1)
    assert (await state_at(database, 5)).levels == VectorLevels(((1,),))
    await append_steps(database, 3, first=10)
    await state_method(database, script).drain(ITEM)
    assert (await lines_of(database))[4:] == [
        (5, "rollback", 9, 9),
        (6, "step", 9, 12),
        (7, "episode", 12, 12),
    ]
    episode = (await vectors_of(database))[-1]
    assert (episode.children, episode.from_position, episode.to_position) == ((1, 6), 0, 12)


async def test_a_level_that_is_full_after_a_rollback_is_compressed_before_more_steps(
    database: Database,
) -> None:
    await make(database, [], STATE, episode_vectors=2)
    await append_steps(database, 9)
    script = Script()
    await state_method(database, script).drain(ITEM)
    await roll_back(database, 2)
    await append_steps(database, 3, first=10)
    await state_method(database, script).drain(ITEM)
    assert (await lines_of(database))[4:] == [
        (5, "rollback", 9, 9),
        (6, "episode", 9, 9),
        (7, "step", 9, 12),
    ]


async def test_what_a_model_says_while_its_memory_is_rolled_back_is_thrown_away(
    database: Database,
) -> None:
    await make(database, [], STATE)
    await append_steps(database, 3)
    script = Script()
    await state_method(database, script).drain(ITEM)
    await append_steps(database, 3, first=4)

    async def undo() -> None:
        script.meanwhile = None
        await roll_back(database, 0)

    script.meanwhile = undo
    assert await state_method(database, script).drain(ITEM) is None
    assert (await lines_of(database))[-1] == (2, "rollback", 3, 3)
    await state_method(database, script).drain(ITEM)
    assert (await lines_of(database))[-1] == (3, "step", 3, 6)
    thrown_away, taken = script.asked[-2:]
    assert not content_of(thrown_away).current_is_task
    assert content_of(taken).current_is_task
