"""Reads a rendered prompt back: its sections, and the texts from outside in each.

A section begins with its name in brackets on a line of its own; of two with one name the last
counts, since those before it are in instructions and examples. Text from outside is between two
marks (`service.domain.prompting.marking`), and the line before may say which it is: `Summary 3:`.
A text of several chunks or notes has such lines within: `[12]`, `12:`, `Note 3 [4-9]:`. The rest
of a section is plain. A test fails where a template does not keep to this.
"""

import re

from service.domain.prompting.flows import ModelRequest

#: The first mark of a text may name how much its source is trusted.
_PART = re.compile(
    r"^(?:\[([A-Z][A-Z ]+)\]\n|<<<data (\S+)(?: \w+)?\n(.*?)\n>>>data \2\n)", re.M | re.S
)
_HEAD = re.compile(
    r"^(?:Note )?\[?(\d+)(?:\](?: \(unverified source\))?| \[\d+-\d+\]:|:)\n", re.MULTILINE
)
#: Time, source and thread of a chunk, above its content.
_HEADING = re.compile(r'\A\[(?:occurred at \d|source "|thread ")[^\n]*\]\n')
_OPTION = re.compile(r"^\(?([A-Z])[.)] (.*)$", re.MULTILINE)
_LIMIT = re.compile(r"(?:at most|about) (\d+) tokens", re.IGNORECASE)


class Prompt:
    """The sections of a prompt."""

    def __init__(self, request: ModelRequest) -> None:
        #: What comes before everything that is data.
        self.instructions = request.segments[0].text
        self._plain = {"": ""}
        self._texts: dict[str, list[tuple[str, str]]] = {"": []}
        name, end, text = "", 0, request.text
        for match in _PART.finditer(text):
            before = text[end : match.start()]
            self._plain[name] += before
            if match[1]:
                name = match[1]
                self._plain[name], self._texts[name] = "", []
            else:
                self._texts[name].append((before.rstrip("\n").rpartition("\n")[2], match[3]))
            end = match.end()
        self._plain[name] += text[end:]

    def texts(self, name: str) -> list[str]:
        """Returns the texts of a section."""
        return [text for _, text in self._texts.get(name, ())]

    def text(self, name: str) -> str:
        """Returns the first text of a section; empty for none."""
        return next(iter(self.texts(name)), "")

    def contents(self, name: str) -> list[str]:
        """Returns the texts of a section without the headings of chunks."""
        return [_HEADING.sub("", text) for text in self.texts(name)]

    def plain(self, name: str) -> str:
        """Returns what a section holds besides texts; empty where there is no such section."""
        return self._plain.get(name, "")

    def numbered(self, name: str) -> list[tuple[int, str]]:
        """Returns the texts of a section, or the parts of its text, with their numbers."""
        found: list[tuple[int, str]] = []
        for label, text in self._texts.get(name, ()):
            if number := re.search(r"\d+", label):
                found.append((int(number[0]), text))
                continue
            first, *parts = _HEAD.split(text)
            found += [(0, first)] if first else []
            said = (one.removesuffix("\n") for one in parts[1::2])
            found += zip(map(int, parts[::2]), said, strict=True)
        return found

    @property
    def query(self) -> str:
        """The question, and what to look for where that is said besides."""
        return self.text("QUERY") or self.text("QUESTION")

    @property
    def options(self) -> dict[str, str]:
        """The options of a multiple-choice question by their letters."""
        return dict(_OPTION.findall(self.text("OPTIONS")))

    @property
    def limit(self) -> int:
        """Tokens that the reply may have at most; a million where the prompt does not say."""
        found = [one for name in self._texts if name for one in _LIMIT.findall(self._plain[name])]
        return int(found[-1]) if found else 1_000_000

    def asks_for(self, part: str) -> bool:
        """Returns whether the form that the instructions show has a part of this name."""
        return f'"{part}": ' in self.instructions
