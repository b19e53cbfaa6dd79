"""A long conversation that was made up, and a model that knows only what its prompt shows.

Each turn is one message of some sentences. About half state a new fact, some repeat a known
one, some correct one, and the rest state none. Facts are about people, by their names or,
now and then, by another name ("the cellist"), or about the user: those come in three wordings
that share no word. The model understands all of them perfectly, whatever they are called, as
far as it is shown what is in the memory: so what is wrong in the end is what it was not shown.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.domain.prism import prompts
from service.domain.prism.instructions import MAX_TIDYING
from service.domain.prompting.flows import ModelRequest, Purpose
from service.domain.values.json_values import Json, canonical
from service.domain.values.paths import Path
from service.llm.offline.notes import entries
from service.llm.offline.prompt import Prompt

SCHEMA = """\
class Notes:
    topics: dict[str, list[str]]  # sentences about a person or a subject, by its name
"""
TASK = "Keep what is said about the user and the people that the user speaks of."

#: Shares of the turns: a new fact, a known one again, a correction; the rest state no fact.
NEW, AGAIN, CORRECTION = 0.5, 0.15, 0.1
#: The share of facts about the user, and of mentions of people by another name.
OF_USER, BY_OTHER_NAME = 0.3, 0.15
#: The share of people of whom a message says what else they are called.
INTRODUCED = 0.7
PEOPLE = 150
USER = 0

_ATTRIBUTES = (
    "works as a {} for the {} company",
    "lives in {} near the {} bridge",
    "has a {} called {}",
    "likes to eat {} with {}",
    "plays the {} in a band called {}",
    "is married to {} {}",
    "was born in {} in the month of {}",
    "drives a {} that was bought in {}",
    "cannot stand {} and {}",
    "is learning {} at the {} school",
)
_CHATTER = (
    "Anyway, it rained all morning and I hardly left the house.",
    "I should really go to bed earlier than I did this week.",
    "That reminds me that the kettle is still on, one moment.",
    "Well, you know how these things go when everybody is in a hurry.",
    "I had a coffee and looked out of the window for a while.",
    "It was a long day, but I am glad that it is done now.",
    "Let me think what else there was that I wanted to tell you.",
    "The train was late again, so I had some time to read.",
)
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "ar", "el", "in")]


@dataclass(frozen=True, slots=True)
class Fact:
    """One known fact about a person; the newest value counts."""

    subject: int
    attribute: int


@dataclass(frozen=True, slots=True)
class Said:
    """What a sentence means, in the text or in the memory."""

    fact: Fact
    value: tuple[str, str]
    #: What the subject is called there.
    called: str
    wording: int = 0
    #: It says what else the subject is called.
    introduces: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """A message, and what it says; None: nothing."""

    text: str
    said: tuple[Said, ...]


class Talk:
    """A conversation of so many turns, the same for the same seed."""

    def __init__(self, turns: int, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._used: set[str] = set()
        self.names = {n: self._word().capitalize() for n in range(1, PEOPLE + 1)}
        self.others = {n: f"the {self._word()}" for n in self.names}
        self._wordings: dict[tuple[int, int], tuple[str, str]] = {}
        #: The newest value of each fact that was said.
        self.truth: dict[Fact, tuple[str, str]] = {}
        #: What each sentence means that a model could write.
        self.meanings: dict[str, Said] = {}
        self.turns = [self._turn() for _ in range(turns)]
        #: What each text says.
        self.said = {turn.text: turn.said for turn in self.turns}

    def sentence(self, said: Said) -> str:
        """Returns how it is said, in the text and in the memory."""
        if said.introduces:
            text = f"{self.names[said.fact.subject]} is also called {said.value[0]}."
        elif said.fact.subject == USER:
            key = (said.fact.attribute, said.wording)
            if key not in self._wordings:
                self._wordings[key] = (self._word(), self._word())
            first, second = self._wordings[key]
            text = f"My {first} {second} {' '.join(said.value)} these days."
        else:
            what = _ATTRIBUTES[said.fact.attribute].format(*said.value)
            text = f"{said.called} {what} since last spring."
        self.meanings[text] = said
        return text

    def _turn(self) -> Turn:
        kind = self._random.random()
        said: list[Said] = []
        if kind < NEW or not self.truth:
            said = self._new()
        elif kind < NEW + AGAIN + CORRECTION:
            fact = self._random.choice(list(self.truth))
            if kind >= NEW + AGAIN:
                self.truth[fact] = self._value()
            said = [self._mention(fact)]
        chatter = self._random.sample(_CHATTER, 2)
        return Turn(" ".join([chatter[0], *map(self.sentence, said), chatter[1]]), tuple(said))

    def _new(self) -> list[Said]:
        if self._random.random() < OF_USER:
            number = sum(fact.subject == USER for fact in self.truth)
            fact = Fact(USER, number)
            self.truth[fact] = self._value()
            return [self._mention(fact)]
        # Some people are spoken of often, most of them seldom.
        subject = 1 + int(PEOPLE * self._random.random() ** 2)
        known = {fact.attribute for fact in self.truth if fact.subject == subject}
        free = [n for n in range(len(_ATTRIBUTES)) if n not in known]
        if not free:
            return self._new()
        fact = Fact(subject, self._random.choice(free))
        self.truth[fact] = self._value()
        said = [Said(fact, self.truth[fact], self.names[subject])]
        if not known and self._random.random() < INTRODUCED:
            other = (self.others[subject], "")
            said.insert(0, Said(Fact(subject, -1), other, self.names[subject], introduces=True))
        return said

    def _mention(self, fact: Fact) -> Said:
        if fact.subject == USER:
            return Said(fact, self.truth[fact], "I", wording=self._random.randrange(3))
        by_other = self._random.random() < BY_OTHER_NAME
        names = self.others if by_other else self.names
        return Said(fact, self.truth[fact], names[fact.subject])

    def _value(self) -> tuple[str, str]:
        return self._word(), self._word()

    def _word(self) -> str:
        while True:
            word = "".join(self._random.choices(_SYLLABLES, k=3))
            if word not in self._used:
                self._used.add(word)
                return word


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """What a prompt shows of the memory."""

    #: The sentences, by their places.
    sentences: Mapping[Path, str]
    #: Keys whose names are shown.
    keys: frozenset[str]


class Listener:
    """The model. It replies to the steps and the consolidations of one memory."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    def reply(self, ask: ModelRequest) -> str:
        """Returns its reply, in the form that is asked for."""
        if ask.purpose is Purpose.CONSOLIDATE:
            return self._shorter(Prompt(ask))
        seen = _seen(ask)
        # A message follows its role in the prompt.
        said = self._talk.said[Prompt(ask).text("TEXT").removeprefix("user: ")]
        changes = [self._change(one, seen) for one in said]
        return _reply([one for one in changes if one is not None])

    def _change(self, said: Said, seen: _Seen) -> tuple[str, str, Json] | None:
        meanings = {path: self._talk.meanings[text] for path, text in seen.sentences.items()}
        for path, held in meanings.items():
            if held.fact == said.fact and self._is_known(said, meanings.values()):
                if held.value == said.value:
                    return None
                return "update", str(path), self._talk.sentence(said)
        text = self._talk.sentence(said)
        key = self._key(said, meanings)
        if key in seen.keys:
            return "add", f"{Path(('topics', key))}[-]", text
        return "add", str(Path(("topics", key))), [text]

    def _is_known(self, said: Said, held: Any) -> bool:
        """Returns whether it is clear whom it is about."""
        return said.called not in self._talk.others.values() or any(
            one.introduces and one.value[0] == said.called for one in held
        )

    def _key(self, said: Said, meanings: Mapping[Path, Said]) -> str:
        if said.fact.subject == USER:
            # A subject of its own, named by the words that were used.
            return " ".join(self._talk.sentence(said).split()[1:3])
        if not self._is_known(said, meanings.values()):
            return said.called
        return self._talk.names[said.fact.subject]

    def _shorter(self, prompt: Prompt) -> str:
        """Removes the oldest until the rest fits: what has to be lost is lost."""
        value = json.loads(prompt.text("MEMORY"))
        budget_tokens = int(re.findall(r"\d+", prompt.plain("SIZE"))[-1])
        excess = len(canonical(value)) / 4 - 0.8 * budget_tokens
        changes: list[tuple[str, str, Json]] = []
        for key, texts in value.get("topics", {}).items():
            if excess <= 0 or len(changes) == MAX_TIDYING:
                break
            changes.append(("remove", str(Path(("topics", key))), ""))
            excess -= len(canonical({key: texts})) / 4
        return _reply(changes)


def _seen(ask: ModelRequest) -> _Seen:
    if ask.template != prompts.REVISE_FOCUSED:
        value: Any = entries(Prompt(ask))[0][1]
        return _Seen(sentences=dict(_sentences(value)), keys=frozenset(value.get("topics", ())))
    keys = {
        key for line in _lines(ask.segments[1].text) for names in line.values() for key in names
    }
    sentences: dict[Path, str] = {}
    for line in _lines(ask.segments[2].text.partition("[ENTRIES]\n")[2]):
        for path, value in line.items():
            place = Path.parse(path)
            items = enumerate(value) if isinstance(value, list) else [(None, value)]
            sentences |= {place if n is None else place / n: text for n, text in items}
    keys |= {str(path.tokens[1]) for path in sentences}
    return _Seen(sentences=sentences, keys=frozenset(keys))


def _lines(text: str) -> Iterator[dict[str, Any]]:
    yield from (json.loads(line) for line in text.splitlines() if line.startswith("{"))


def _sentences(value: Any) -> Iterator[tuple[Path, str]]:
    for key, texts in value.get("topics", {}).items():
        for number, text in enumerate(texts):
            yield Path(("topics", key, number)), text


def _reply(changes: Sequence[tuple[str, str, Json]]) -> str:
    made = [
        {"op": op, "path": path, "value": json.dumps(value) if value else ""}
        for op, path, value in changes
    ]
    return json.dumps({"changes": made})


def judged(talk: Talk, value: Any) -> dict[str, int]:
    """Compares the memory with the facts that were said."""
    held = [talk.meanings[text] for _, text in _sentences(value)]
    held = [one for one in held if not one.introduces]
    counts = Counter(one.fact for one in held)
    return {
        "facts": len(talk.truth),
        "repeated": sum(count - 1 for count in counts.values()),
        "stale": len({one.fact for one in held if one.value != talk.truth[one.fact]}),
        "missing": sum(
            not any(one.fact == fact and one.value == value for one in held)
            for fact, value in talk.truth.items()
        ),
    }
