"""A client process that is killed has a successor that continues with its lanes."""

import random
from pathlib import Path

from verification.chaos import history
from verification.chaos.client_appends import Producing
from verification.chaos.clients import LIFE_EPOCHS, MAKINGS, Desk, Plan, Room


def test_the_next_life_goes_on_at_its_turns_under_higher_epochs(tmp_path: Path) -> None:
    plan = Plan(name="client-0", addresses=[], folder=str(tmp_path), seed=1, lanes=[0, 2])
    first = Desk(plan)
    assert (first.life, first.turn(0), first.turn(2)) == (0, 0, 2)
    first.begin_turn(2, 5)
    second = Desk(plan)
    assert (second.life, second.turn(0), second.turn(2)) == (1, 0, 5)
    room = Room(session="s", making=MAKINGS[0])
    made = [Producing(desk, room, "p", random.Random(1)) for desk in (first, second)]
    assert [one.epoch for one in made] == [0, LIFE_EPOCHS]


def test_half_a_line_of_a_killed_client_spoils_nothing_of_the_next_one(
    tmp_path: Path,
) -> None:
    plan = Plan(name="client-0", addresses=[], folder=str(tmp_path), seed=1, lanes=[])
    Desk(plan)
    (path,) = tmp_path.glob("history-*.jsonl")
    path.write_text('["Acked", {"cli')
    event = history.Refused(
        client="c", session="s", name="p", sequence=1, reason="HEAD_MISMATCH", at=1.0
    )
    Desk(plan).write(event)
    assert list(history.read(sorted(tmp_path.glob("history-*.jsonl")))) == [event]
