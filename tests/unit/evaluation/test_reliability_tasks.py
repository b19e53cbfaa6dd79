"""Tasks of the reliability experiment: their ends are what their words say."""

from hypothesis import given
from hypothesis import strategies as st

from evaluation.reliability import tasks
from evaluation.reliability.world import BOXES, NOTHING, Kind, Said, known, read
from tests.unit.evaluation.games import by_hand

LENGTHS = st.integers(min_value=1, max_value=120)
SEEDS = st.integers(min_value=0, max_value=10_000)


def asked_box(task: tasks.Task) -> str:
    words = task.question.split()
    return words[words.index("box") - 1]


@given(length=LENGTHS, seed=SEEDS)
def test_the_end_is_what_the_words_say(length: int, seed: int) -> None:
    task = tasks.make(length, 1, seed=seed)
    assert len(task.observations) == length
    held = by_hand(task.prompt, task.observations)
    assert held[asked_box(task)] == task.gold
    text = "\n".join((task.prompt, *task.observations))
    assert known(read(text)) == held


@given(length=LENGTHS, seed=SEEDS, data=st.data())
def test_who_has_lost_the_beginning_cannot_know(
    length: int, seed: int, data: st.DataObject
) -> None:
    task = tasks.make(length, 1, seed=seed)
    kept = data.draw(st.integers(min_value=0, max_value=length))
    held = known(read("\n".join(task.observations[length - kept :])))
    assert asked_box(task) not in held


def test_a_task_is_always_the_same_and_others_are_others() -> None:
    assert tasks.make(30, 2, seed=7) == tasks.make(30, 2, seed=7)
    others = {tasks.make(30, number, seed=seed) for number in (1, 2) for seed in (7, 8)}
    assert len(others) == 4


def test_every_kind_of_step_happens() -> None:
    text = "\n".join(tasks.make(200, 1, seed=1).observations)
    assert {said.kind for said in read(text)} == {Kind.SWAP, Kind.MOVE, Kind.COPY, Kind.PUT}
    idle = [one for one in tasks.make(200, 1, seed=1).observations if not list(read(one))]
    assert 20 < len(idle) < 80


def test_tasks_of_all_lengths() -> None:
    made = tasks.make_all([10, 40], 3, seed=1)
    assert [(one.length, one.number) for one in made] == [
        *((10, number) for number in (1, 2, 3)),
        *((40, number) for number in (1, 2, 3)),
    ]


@given(
    kind=st.sampled_from(Kind),
    boxes=st.permutations(BOXES),
    item=st.sampled_from(["coin", "key", NOTHING]),
)
def test_what_is_written_is_read(kind: Kind, boxes: list[str], item: str) -> None:
    two = kind in (Kind.SWAP, Kind.MOVE, Kind.COPY)
    has_item = kind is Kind.HOLDS or (kind is Kind.PUT and item != NOTHING)
    said = Said(
        kind=kind,
        box=boxes[0],
        other=boxes[1] if two else "",
        item=item if has_item else "coin" if kind is Kind.PUT else "",
    )
    assert list(read(f"Step 3. Ann {said.sentence()} It rains.")) == [said]


def test_what_is_not_known_goes_along() -> None:
    held = known(
        [
            Said(kind=Kind.HOLDS, box="red", item="coin"),
            Said(kind=Kind.SWAP, box="red", other="blue"),
            Said(kind=Kind.MOVE, box="green", other="white"),
            Said(kind=Kind.COPY, box="black", other="blue"),
        ]
    )
    assert held == {"green": NOTHING}
