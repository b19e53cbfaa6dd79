"""The ratchet of English and class names: what it finds, and that it only goes down."""

from pathlib import Path

import pytest

from tests import words
from tests.words import Record, breaches, lowered, passages, recorded, same_names

SOURCE = '''"""Of a page, what nobody has read."""

MESSAGE = "nobody told you"


class Page:
    """Returns pages."""

    class Line:
        """Lines: what stands in a page."""

    def read(self) -> str:
        """A docstring.

        Who reads it lets go of it.
        """
        return MESSAGE  # Somebody brings it.
'''


def broken(path: str, text: str) -> dict[str, list[str]]:
    found = breaches(passages(path, text))
    return {name.split(" (")[0]: where for name, where in found.items() if where}


def test_docstrings_and_comments_are_read_and_strings_are_not() -> None:
    assert broken("a.py", SOURCE) == {
        "a docstring begins with Of": ["a.py:1"],
        "a docstring is a riddle": ["a.py:10"],
        "an actor has no name": ["a.py:17", "a.py:1"],
        "Who is an actor": ["a.py:15"],
        "let go is a technical verb": ["a.py:15"],
        "bring is a technical verb": ["a.py:17"],
    }


def test_the_comments_of_a_proto_and_each_line_of_a_page_are_read() -> None:
    assert broken("a.proto", "message Told {\n  // Whoever asks.\n}\n") == {
        "an actor has no name": ["a.proto:2"]
    }
    page = "Of all pages.\nWho is it?\nWhat it came to.\n"
    assert broken("a.md", page) == {"come to is a technical verb": ["a.md:3"]}


def test_classes_of_one_name_are_found_wherever_they_are() -> None:
    assert same_names({"a.py": SOURCE, "b.py": "class Line: ...\nclass Other: ...\n"}) == {
        "Line": ["a.py:9", "b.py:1"]
    }


def test_what_has_fallen_is_recorded_and_what_has_risen_is_not(tmp_path: Path) -> None:
    old = Record(english={"a": 3, "b": 3, "gone": 1}, same_names=["One", "Two"])
    new = Record(english={"a": 2, "b": 4, "new": 0}, same_names=["Three", "Two"])
    lower = lowered(old, new)
    assert lower == Record(english={"a": 2, "b": 3, "new": 0}, same_names=["Two"])
    lower.write(tmp_path / "words.toml")
    assert recorded(tmp_path / "words.toml") == lower
    Record(english={}, same_names=[]).write(tmp_path / "words.toml")
    assert recorded(tmp_path / "words.toml") == Record(english={}, same_names=[])


def test_a_rise_fails_and_a_fall_says_to_record_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (rule, other) = list(words.RULES)[:2]
    left = {rule: ["a.py:1", "b.py:2"], other: ["a.py:7"]}
    monkeypatch.setattr(words, "measured", lambda: (left, {}))
    monkeypatch.setattr(words, "changed", lambda: {"b.py"})
    counts = {rule: 1, other: 5}
    monkeypatch.setattr(words, "recorded", lambda: Record(english=counts, same_names=["Gone"]))
    assert words.check_english() == f"{rule}: 2, recorded are 1\nb.py:2"
    assert f"note  {other}: 1 instead of 5; `make fix` records it" in capsys.readouterr().out
    monkeypatch.setattr(words, "files", lambda *patterns: {"a.py": "class A: ...\nclass A: ..."})
    assert words.check_same_names() == "two classes are named A: a.py:1, a.py:2"
    assert "note  one class each has now: Gone" in capsys.readouterr().out
