"""The English rules of CONTRIBUTING.md that a pattern can match, and classes with one name.

`tests/words.toml` records how many breaches are left. The numbers may only fall: `make verify`
fails when one rises, and `make fix` lowers them.

    python -m tests.words                lists every breach
    python -m tests.words "actor"        lists the breaches of rules with this word in their name
    python -m tests.words --lower        records what has fallen
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests import ROOT

RECORD = ROOT / "tests/words.toml"
#: The rules by name. Docstrings are matched from their beginning, so that `\A` works.
RULES = {
    "a docstring begins with Of": r"\AOf\b",
    "a docstring is a riddle (Word: what ...)": r"\A(?:\w+ ){0,3}\w+: (?:what|who|how)\b",
    "an actor has no name (somebody, nobody, whoever ...)": (
        r"(?i)\b(?:somebody|someone|nobody|anybody|everybody|whoever)\b"
    ),
    "Who is an actor": r"\bWho\b(?!.*\?)",
    "tell is a technical verb": r"(?i)\b(?:tells?|told|telling)\b",
    "bring is a technical verb": r"(?i)\b(?:brings?|brought|bringing)\b",
    "come to is a technical verb": r"(?i)\b(?:comes?|came|coming) to\b",
    "let go is a technical verb": r"(?i)\b(?:let|lets|letting) go\b",
    "settle is a technical verb": r"(?i)\bsettl(?:e|es|ed|ing)\b",
}
#: The first two quote the words that they forbid; the rest is not written here.
LEFT_OUT = re.compile(
    r"^CONTRIBUTING\.md$|^tests/unit/verification/test_words\.py$|^third_party/|_pb2"
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A docstring, a comment, or a line of a page."""

    path: str
    line: int
    text: str
    docstring: bool = False


@cache
def outline(text: str) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Returns the docstrings of a module and the names of its classes, each with its line."""
    docstrings: list[tuple[int, str]] = []
    classes: list[tuple[int, str]] = []
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ClassDef):
            classes.append((node.lineno, node.name))
        if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node, clean=False)):
            docstrings.append((node.body[0].lineno, docstring.lstrip()))
        # Statements only: they are a tenth of the nodes.
        waiting += [one for one in ast.iter_child_nodes(node) if isinstance(one, STATEMENTS)]
    return sorted(docstrings), sorted(classes)


def passages(path: str, text: str) -> Iterator[Passage]:
    """Yields what a person reads in a file: its prose, without code and strings."""
    if not path.endswith(".py"):
        for number, line in enumerate(text.splitlines(), start=1):
            prose = line.partition("//")[2] if path.endswith(".proto") else line
            yield Passage(path=path, line=number, text=prose)
        return
    # As the formatter writes them. A tokenizer would take three times as long as all the rest.
    for number, line in enumerate(text.splitlines(), start=1):
        if comment := re.search(r"(?:^ *|  )#.*", line):
            yield Passage(path=path, line=number, text=comment[0])
    for number, docstring in outline(text)[0]:
        yield Passage(path=path, line=number, text=docstring, docstring=True)


def breaches(found: Iterable[Passage]) -> dict[str, list[str]]:
    """Returns where each rule is broken, as `path:line`, once for each match."""
    broken: dict[str, list[str]] = {name: [] for name in RULES}
    for passage in found:
        for name, pattern in RULES.items():
            if pattern.startswith(r"\A") and not passage.docstring:
                continue
            for match in re.finditer(pattern, passage.text):
                line = passage.line + passage.text.count("\n", 0, match.start())
                broken[name].append(f"{passage.path}:{line}")
    return broken


def same_names(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns the class names that occur more than once in these files, and where."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, text in sources.items():
        for line, name in outline(text)[1]:
            places[name].append(f"{path}:{line}")
    return {name: where for name, where in sorted(places.items()) if len(where) > 1}


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is left: breaches by rule, and class names that two or more classes share."""

    english: dict[str, int]
    same_names: list[str]

    def write(self, path: Path) -> None:
        """Writes the record as TOML."""
        counts = "\n".join(f'"{name}" = {count}' for name, count in self.english.items())
        names = "".join(f'    "{name}",\n' for name in self.same_names)
        path.write_text(
            "# How much of the old English and of doubled class names is left.\n"
            "# It may only fall: `make fix` lowers it. CONTRIBUTING.md has the rules.\n"
            f"same_names = [\n{names}]\n\n[english]\n{counts}\n"
        )


def recorded(path: Path = RECORD) -> Record:
    """Reads the record."""
    return Record(**tomllib.loads(path.read_text()))


def lowered(old: Record, new: Record) -> Record:
    """Returns the lower of both records; a number that rose stays as recorded."""
    return Record(
        english={
            name: min(count, old.english.get(name, count)) for name, count in new.english.items()
        },
        same_names=[name for name in new.same_names if name in old.same_names],
    )


def files(*patterns: str) -> dict[str, str]:
    """Returns the files that git tracks, or would, and what is in them."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = sorted(set(listed.stdout.splitlines()))
    return {one: (ROOT / one).read_text() for one in paths if (ROOT / one).is_file()}


def measured() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Returns what is left in the repository: breaches of the rules, and shared names."""
    prose = {
        path: text
        for path, text in files("*.py", "*.md", "*.proto").items()
        if not LEFT_OUT.search(path)
    }
    broken = breaches(one for path, text in prose.items() for one in passages(path, text))
    return broken, same_names(files("service/*.py", "storage/*.py"))


def as_record(broken: Mapping[str, list[str]], doubled: Mapping[str, list[str]]) -> Record:
    """Returns the record that would be true now."""
    return Record(
        english={name: len(where) for name, where in broken.items()}, same_names=list(doubled)
    )


def changed() -> set[str]:
    """Returns the files that are not as they were committed."""
    status = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=all"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {line[3:].rpartition(" -> ")[2] for line in status.stdout.splitlines()}


def check_english() -> str:
    """No rule of the English has more breaches than are recorded."""
    broken, _ = measured()
    old, touched = recorded().english, changed()
    found = []
    for name, where in broken.items():
        if len(where) > old.get(name, 0):
            yours = [one for one in where if one.rpartition(":")[0] in touched]
            found.append(f"{name}: {len(where)}, recorded are {old.get(name, 0)}")
            found += yours or [f'`python -m tests.words "{name}"` lists them']
        elif len(where) < old[name]:
            print(f"note  {name}: {len(where)} instead of {old[name]}; `make fix` records it")
    return "\n".join(found)


def check_same_names() -> str:
    """No two classes of service/ and storage/ have the same name, but for recorded ones."""
    doubled = same_names(files("service/*.py", "storage/*.py"))
    old = recorded().same_names
    gone = [name for name in old if name not in doubled]
    if gone:
        print(f"note  one class each has now: {', '.join(gone)}; `make fix` records it")
    return "\n".join(
        f"two classes are named {name}: {', '.join(where)}"
        for name, where in doubled.items()
        if name not in old
    )


def main() -> None:
    """Lists what is left, or records what has fallen."""
    broken, doubled = measured()
    if "--lower" in sys.argv:
        lowered(recorded(), as_record(broken, doubled)).write(RECORD)
        return
    word = " ".join(sys.argv[1:])
    for name, where in {**broken, **{f"two classes {k}": v for k, v in doubled.items()}}.items():
        if word in name:
            print(f"{name}: {len(where)}", *where, sep="\n    ")


if __name__ == "__main__":
    main()
