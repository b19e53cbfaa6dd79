"""What an entry of a PRISM memory is, and that each revision changes those that it must."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.domain.prism import entries
from service.domain.prism.amending import MISSING, amend, value_at
from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.entries import RECORD_CHARACTERS, EntryReplay
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import Mismatch
from service.domain.values.paths import Path

SCHEMA = parse_source("""
class Home:
    city: str
    years: tuple[int, int]

class Person:
    role: str
    hobbies: list[str]
    home: Home | None

class Event:
    date: str
    what: str

class Memory:
    people: dict[str, Person]
    events: list[Event]
    topics: dict[str, list[str]]
    mood: str
""")


def shown(value: Any) -> list[tuple[str, str]]:
    return [(one.path, one.text) for one in entries.entries(SCHEMA, value)]


def test_a_short_record_is_one_entry_and_what_is_listed_are_several() -> None:
    value = {
        "people": {"Ann": {"role": "engineer", "hobbies": ["chess", "go"], "home": None}},
        "events": [{"date": "2024-05-01", "what": "moved"}, {"date": "", "what": "????"}],
        "topics": {"food": ["no nuts", " "], "cars": []},
        "mood": "calm",
    }
    assert shown(value) == [
        ("$['people']['Ann']", "people / Ann: hobbies: chess, go; role: engineer"),
        ("$['events'][0]", "events: date: 2024-05-01; what: moved"),
        ("$['topics']['food'][0]", "topics / food: no nuts"),
        ("$['mood']", "mood: calm"),
    ]


def test_a_long_record_has_an_entry_for_each_part() -> None:
    hobbies = ["x" * RECORD_CHARACTERS, "go"]
    value = {"people": {"Ann": {"role": "r", "hobbies": hobbies, "home": {"city": "Bergen"}}}}
    assert [path for path, _ in shown(value)] == [
        "$['people']['Ann']['role']",
        "$['people']['Ann']['hobbies'][0]",
        "$['people']['Ann']['hobbies'][1]",
        "$['people']['Ann']['home']",
    ]


def test_the_order_of_keys_does_not_count() -> None:
    one = {"people": {"Ann": {"role": "r", "hobbies": []}}, "mood": "m"}
    other = {"mood": "m", "people": {"Ann": {"hobbies": [], "role": "r"}}}
    assert sorted(shown(one)) == sorted(shown(other))


TEXTS = st.sampled_from(["a", "b", "c", "????", "", "x" * 400, "y" * 700])
HOMES = st.fixed_dictionaries({"city": TEXTS, "years": st.just([1, 2])})
PEOPLE = st.fixed_dictionaries(
    {"role": TEXTS, "hobbies": st.lists(TEXTS, max_size=3)}, optional={"home": HOMES | st.none()}
)
EVENTS = st.fixed_dictionaries({"date": TEXTS, "what": TEXTS})
KEYS = st.sampled_from(["k", "l"])
INDEXES = st.integers(0, 3)


@st.composite
def changes(draw: st.DrawFn) -> Amendment:
    """Returns an amendment that may fit or not."""
    key, index = draw(KEYS), draw(INDEXES)
    path, values = draw(
        st.sampled_from(
            [
                (("mood",), TEXTS),
                (("people",), st.dictionaries(KEYS, PEOPLE, max_size=2)),
                (("people", key), PEOPLE),
                (("people", key, "role"), TEXTS),
                (("people", key, "hobbies"), st.lists(TEXTS, max_size=3)),
                (("people", key, "hobbies", index), TEXTS),
                (("people", key, "home"), HOMES),
                (("people", key, "home", "city"), TEXTS),
                (("events",), st.lists(EVENTS, max_size=4)),
                (("events", index), EVENTS),
                (("events", index, "what"), TEXTS),
                (("topics", key), st.lists(TEXTS, max_size=4)),
                (("topics", key, index), TEXTS),
            ]
        )
    )
    op = draw(st.sampled_from([Op.ADD, Op.UPDATE, Op.REMOVE]))
    new: Any = None if op is Op.REMOVE else draw(values)
    return Amendment(path=Path(path), op=op, value=new)


def fitting(value: Any, proposed: Sequence[Amendment]) -> tuple[Any, list[Amendment]]:
    """Returns the value after those that fit, and these."""
    kept: list[Amendment] = []
    for one in proposed:
        if one.op is Op.REMOVE and value_at(value, one.path) is MISSING:
            continue
        try:
            value = amend(SCHEMA, value, [one])
        except Mismatch:
            continue
        kept.append(one)
    return value, kept


@given(st.lists(st.lists(changes(), min_size=1, max_size=4), max_size=12), st.data())
def test_after_each_revision_the_entries_are_those_of_the_value(
    proposed: list[list[Amendment]], data: st.DataObject
) -> None:
    values: list[Any] = [{}]
    replay = EntryReplay(SCHEMA)
    for revision, batch in enumerate(proposed, 1):
        before = {one.entry.entry_id: one for one in replay.written.values()}
        if data.draw(st.integers(0, 5)) == 0:
            value = data.draw(st.sampled_from(values))
            replay.revise(revision, (), positions=(0, 0), restored=value)
        else:
            value, kept = fitting(values[-1], batch)
            replay.revise(revision, kept, positions=(revision, revision))
        values.append(value)
        assert replay.value == value
        wanted = {one.entry_id: one for one in entries.entries(SCHEMA, value)}
        assert {key: one.entry for key, one in replay.written.items()} == wanted
        for key, one in replay.written.items():
            known = before.get(key)
            if known is not None and known.entry == one.entry:
                assert one == known
            assert one.source is None
            assert one.first_position is not None


def test_what_is_rewritten_in_other_words_rests_on_what_it_did() -> None:
    replay = EntryReplay(SCHEMA)
    for revision, (said, read) in enumerate((("sad", (1, 2)), ("calm", (3, 5))), 1):
        one = Amendment(path=Path(("mood",)), op=Op.UPDATE, value=said)
        positions = entries.positions_of("step", read[0] - 1, read[1])
        replay.revise(revision, [one], positions=positions)
    again = Amendment(path=Path(("mood",)), op=Op.UPDATE, value="quite calm")
    replay.revise(3, [again], positions=entries.positions_of("consolidation", 5, 5))
    (mood,) = replay.written.values()
    assert (mood.revision, mood.first_position, mood.last_position) == (3, 3, 5)
    by_hand = Amendment(path=Path(("mood",)), op=Op.UPDATE, value="happy")
    replay.revise(4, [by_hand], positions=entries.positions_of("edit", 5, 5))
    (mood,) = replay.written.values()
    assert (mood.revision, mood.first_position, mood.last_position) == (4, 0, 0)
