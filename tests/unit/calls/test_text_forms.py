import time

from service.cli.tasks import TASKS
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
    first, second = sections(CODE)
    assert (first.name, second.name) == ("first", "Second")
    assert first.sentences == ("Gives the first of two things.",)
    assert second.sentences == ()


def test_tables_are_read_row_by_row() -> None:
    (table,) = sections("Table: ship\nid,name\n1,Aurora\n2,Berg\n")
    assert table.name == "Table: ship"
    assert table.sentences == ("id,name: 1,Aurora", "id,name: 2,Berg")
    names = [one.name for text in TASKS["tables"]().texts for one in sections(text)]
    assert names == [f"Table: {name}" for name in ("ship", "port", "voyage", "damage")]


def test_prose_has_no_forms() -> None:
    for text in (
        "The class of def is a word.\nTable manners matter, they say.",
        *TASKS["book"]().texts,
    ):
        assert not any(one.name.islower() for one in sections(text))


def test_a_long_text_takes_no_longer_than_its_length() -> None:
    def seconds(text: str) -> float:
        start = time.perf_counter()
        sections(text)
        return time.perf_counter() - start

    for piece in ("Table: x\na,b\n", "def f(", 'def f():\n """', "a,b\n", "Table "):
        short, long = seconds(piece * 2000), seconds(piece * 20_000)
        assert long < 200 * max(short, 0.001), piece
