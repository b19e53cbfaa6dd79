"""What `palimpsest demo --task …` streams and asks: one job for each task of the paper.

Book summary, code retrieval and questions about tables are the three tasks of
arXiv 2412.18914, section 4; their texts are our own or ship with Python. The fourth, on
Python's language reference, is the longest.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from palimpsest._splitting import split


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Texts to stream, a memory of them, and questions to ask."""

    #: What the texts are, for people.
    title: str
    #: Class source.
    schema: str
    task: str
    #: The question that the memory serves; may be empty.
    question: str
    #: Tokens that the chunks of a step have together.
    chunk_tokens: int
    texts: Sequence[str]
    questions: Sequence[str]


BOOK_SCHEMA = '''class Story:
    """What a reader of the summary must know."""
    class Person:
        who: str
        """Who it is, in one sentence."""
        aims: list[str]
        """What the person wants, and why."""
    people: dict[str, Person]
    """By name; only those on whom the story turns."""
    events: dict[str, list[str]]
    """What happens, in the order of the story, by person or place."""
'''

CODE_SCHEMA = '''class Candidates:
    """Functions that may be the one that is described."""
    class Function:
        purpose: str
        """What it is for."""
        parameters: str
        """What it takes."""
        result: str
        """What it returns."""
        steps: list[str]
        """How it works."""
    functions: dict[str, Function]
    """By the exact name of the function; each name once."""
'''

TABLE_SCHEMA = '''class Tables:
    """What the tables say, as far as it helps to answer."""
    class Table:
        columns: list[str]
        """Names of columns, exactly as in the table."""
        findings: list[str]
        """Numbers and names worked out from the rows, each in a sentence."""
        links: list[str]
        """Which column refers to which other table."""
    tables: dict[str, Table]
    """By the table's name."""
'''

REFERENCE_SCHEMA = '''class LanguageReference:
    """What the reference of a programming language says, by topic."""
    topics: dict[str, list[str]]
    """Sentences that define or explain, keyed by the statement or notion they are about."""
'''


def book() -> Task:
    """Returns the task to summarize a short story."""
    return Task(
        title="a short story, The Keeper of Skarholm",
        schema=BOOK_SCHEMA,
        task="Keep what a summary of the story needs: people, what they want, what happens.",
        question="",
        chunk_tokens=400,
        texts=list(split(_text("lighthouse.txt"), 1200)),
        questions=[
            "Why did Ingrid stay on the rock?",
            "Who is Elias Falk?",
            "What did Jonas build?",
        ],
    )


def code() -> Task:
    """Returns the task to search the source of a module of Python's own."""
    source = inspect.getsource(textwrap)
    functions = re.split(r"(?m)^(?=(?:def|class) )", source)
    description = (
        "It puts a given text before the lines of another text. A second, optional argument"
        " says before which of them; without it lines of blanks are left as they are."
    )
    return Task(
        title="the source of Python's textwrap module",
        schema=CODE_SCHEMA,
        task="Find the function that fits a description. Keep what each function is and does.",
        question=f"What is the exact name of the function that does this: {description}",
        chunk_tokens=1500,
        texts=[piece for one in functions if one.strip() for piece in split(one, 6000)],
        questions=[
            "Which function adds a prefix to the beginning of selected lines?",
            "Which function removes common leading whitespace from every line?",
        ],
    )


def tables() -> Task:
    """Returns the task to ask small tables about ships and harbours."""
    whole = _text("harbour.csv")
    return Task(
        title="four tables about ships and harbours",
        schema=TABLE_SCHEMA,
        task="Answer questions that need several tables. Keep what is needed, not the rows.",
        question="How many voyages ended in Larvik, and which ship made most of them?",
        chunk_tokens=100,
        texts=whole.strip().split("\n\n"),
        questions=["Which voyages ended in Larvik?", "Which part was damaged?"],
    )


def reference() -> Task:
    """Returns the task to ask Python's language reference, which every CPython has."""
    from pydoc_data.topics import topics

    return Task(
        title="Python's language reference",
        schema=REFERENCE_SCHEMA,
        task="Keep what the reference says about each statement and notion.",
        question="",
        chunk_tokens=600,
        texts=[piece for topic in topics.values() for piece in split(topic)],
        questions=[
            "What does the assert statement do?",
            "How does a with statement call __enter__ and __exit__?",
            "What does the global statement mean?",
        ],
    )


TASKS: dict[str, Callable[[], Task]] = {
    "reference": reference,
    "book": book,
    "code": code,
    "tables": tables,
}


def _text(name: str) -> str:
    return (resources.files("service.cli.tasks") / name).read_text(encoding="utf-8")
