"""Texts that are no prose: source code and tables, told apart by their form."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: Rows of a table that are read.
MAX_ROWS = 200

_DEFINITION = re.compile(r"^(?:async\s+)?(?:def|class)\s+(\w+)\s*(\([^\n]*)?", re.MULTILINE)
_DOCSTRING = re.compile(r"[\"']{3}(.*?)[\"']{3}", re.DOTALL)
#: What stands at the margin of code, besides what it defines.
_CODE = re.compile(
    r"\s|(?:async|class|def|from|import|if|else|elif|try|except|with|for)\b"
    r"|[@#\"'()\[\]{}]|[\w.]{1,80}\s?[=:(]"
)
#: Share of the lines that may stand there otherwise.
_PROSE_SHARE = 0.2
_TABLE = re.compile(
    r"^Table:?[ \t]++(\S[^\n]{0,99})\n([^\n,]*+,[^\n]*+)\n((?:[^\n,]*+,[^\n]*+(?:\n|\Z))*)",
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """A function, a class or a table."""

    name: str
    #: What stands there as it is, each a sentence of its own.
    facts: tuple[str, ...]
    #: Running text about it; may be empty.
    prose: str = ""


def forms(text: str) -> Sequence[Definition]:
    """What a text defines; nothing when it is prose."""
    return [*_tables(text)] or [*_definitions(text)]


def _definitions(text: str) -> Iterator[Definition]:
    """The functions and classes at the margin, each with its docstring."""
    found = list(_DEFINITION.finditer(text))
    lines = [line for line in text.splitlines() if line.strip()]
    if not found or sum(not _CODE.match(line) for line in lines) > _PROSE_SHARE * len(lines):
        return
    for match, following in zip(found, [*found[1:], None], strict=True):
        body = text[match.end() : following.start() if following else len(text)]
        docstring = _DOCSTRING.search(body)
        signature = f"{match[1]}{(match[2] or '').rstrip(': ')}"
        yield Definition(
            name=match[1], facts=(signature,), prose=docstring[1].strip() if docstring else ""
        )


def _tables(text: str) -> Iterator[Definition]:
    """Tables that are named, with a row of names above their rows."""
    for match in _TABLE.finditer(text):
        names = [name.strip() for name in match[2].split(",")]
        rows = list(csv.reader(match[3].splitlines()[:MAX_ROWS]))
        facts = [
            ", ".join(f"{name} {value.strip()}" for name, value in zip(names, row, strict=True))
            for row in rows
            if len(row) == len(names)
        ]
        yield Definition(name=match[1].strip(), facts=(f"columns {', '.join(names)}", *facts))
