import time

from service.cli.tasks import TASKS
from service.llm.offline.text_forms import forms
from service.llm.offline.texts import sections

CODE = '''
import re

def first(a, b=(1, 2)):
    """Gives the first of two things. It never fails."""
    return a

class Second(Base):
    pass
'''


def test_code_is_read_by_what_it_defines() -> None:
    first, second = forms(CODE)
    assert (first.name, first.facts) == ("first", ("first(a, b=(1, 2))",))
    assert first.prose == "Gives the first of two things. It never fails."
    assert (second.name, second.prose) == ("Second", "")
    found = sections(CODE)
    assert [section.heading for section in found] == ["first", "Second"]
    assert found[0].sentences[0] == "Gives the first of two things."


def test_tables_are_read_row_by_row() -> None:
    (table,) = forms('Table: ship\nid,name\n1,Aurora\n2,"Berg, ljot"\nbroken\n')
    assert table.name == "ship"
    assert table.facts == ("columns id, name", "id 1, name Aurora", "id 2, name Berg, ljot")
    names = [form.name for text in TASKS["tables"]().texts for form in forms(text)]
    assert names == ["ship", "port", "voyage", "damage"]


def test_prose_has_no_forms() -> None:
    assert forms("The class of def is a word.\nTable manners matter, they say.") == []
    assert all(not forms(text) for text in TASKS["book"]().texts)


def test_a_long_text_takes_no_longer_than_its_length() -> None:
    def seconds(text: str) -> float:
        start = time.perf_counter()
        forms(text)
        return time.perf_counter() - start

    for piece in ("Table: x\na,b\n", "def f(", 'def f():\n """', "a,b\n", "Table "):
        short, long = seconds(piece * 2000), seconds(piece * 20_000)
        assert long < 200 * max(short, 0.001), piece
