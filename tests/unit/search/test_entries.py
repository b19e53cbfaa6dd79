"""Entries of memories: their texts, their parts, and what changes between two values."""

import pytest

from service.domain.search.entries import (
    TEXT_CHARACTERS,
    Entry,
    changed_entries,
    entry_text,
    text_entries,
)


def entry(path: str, value: str) -> Entry:
    return Entry(path=path, value=value)


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("$['food']", '"no nuts"', "food: no nuts"),
        ("$['open_questions'][3]", '"Where is Elias?"', "open questions: Where is Elias?"),
        ("$['people']['Ann O\\'Hara']['age']", "41", "people / Ann O'Hara / age: 41"),
        ("$['people']['Ann']['is_home']", "true", "people / Ann / is home: true"),
        (
            "$['events'][0]",
            '{"date":"2024-05-01","note":null,"what":"moved","who":["Ann","Bo"]}',
            "events: date: 2024-05-01; what: moved; who: Ann, Bo",
        ),
        ("$['a']", '{"b":{"c":1,"d":"x"}}', "a: b: (c: 1; d: x)"),
        ("0.12", '"A summary."', "A summary."),
        ("1.7", '"$ is no path here"', "$ is no path here"),
    ],
)
def test_an_entry_is_shown_with_the_names_on_its_path(path: str, value: str, text: str) -> None:
    assert entry_text(path, value) == text


def test_a_long_text_is_cut_after_sentences() -> None:
    text = "This is the sentence number one of many. " * 100
    found = list(text_entries("1.1", text))
    assert [one.part for one in found] == list(range(len(found)))
    assert all(one.text.endswith("of many.") for one in found)
    assert all(len(one.text) <= TEXT_CHARACTERS for one in found)
    assert " ".join(one.text for one in found) == text.strip()
    assert len({one.entry_id for one in found}) == len(found)


def test_a_text_without_ends_is_cut_all_the_same() -> None:
    found = [one.text for one in text_entries("1.1", "x" * (2 * TEXT_CHARACTERS + 1))]
    assert [len(one) for one in found] == [TEXT_CHARACTERS, TEXT_CHARACTERS, 1]
    assert list(text_entries("1.1", " \n ")) == []


def test_an_entry_that_moves_up_stays_what_it_was() -> None:
    before = [entry("$['a'][0]", '"x"'), entry("$['a'][1]", '"y"'), entry("$['a'][2]", '"z"')]
    after = [entry("$['a'][0]", '"y"'), entry("$['a'][1]", '"new"')]
    changes = changed_entries(before, after, revision=7, positions=(3, 4))
    moved, new = changes.written
    assert (moved.source, moved.is_moved) == (before[1].entry_id, True)
    assert (new.source, new.is_moved) == (before[1].entry_id, False)
    assert (new.revision, new.first_position, new.last_position) == (7, 3, 4)
    assert changes.dropped == [before[2].entry_id]


def test_equal_entries_move_one_by_one() -> None:
    before = [entry(f"$['a'][{at}]", value) for at, value in enumerate(['"x"', '"s"', '"s"'])]
    after = [entry("$['a'][0]", '"s"'), entry("$['a'][1]", '"s"')]
    changes = changed_entries(before, after, revision=2, positions=None)
    # The one in the middle says what it said.
    assert [(one.entry, one.source) for one in changes.written] == [(after[0], before[2].entry_id)]


def test_what_stays_changes_nothing() -> None:
    before = [entry("$['a']", '"x"')]
    assert not changed_entries(before, before, revision=2, positions=None)
