"""Words of texts and of answers, as measures compare them."""

import re
import unicodedata

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
#: Right answers that occur in any text, and say nothing about their source.
_BARE = frozenset({"yes", "no"})


def normalized(text: str) -> str:
    """Lower case, without punctuation and articles, one blank between words."""
    lower = text.casefold()
    bare = "".join(char for char in lower if not unicodedata.category(char).startswith("P"))
    return " ".join(_ARTICLES.sub(" ", bare).split())


def telling(golds: tuple[str, ...]) -> tuple[str, ...]:
    """Right answers whose words can be looked for in a text: not yes and no; normalized."""
    found = (normalized(gold) for gold in golds)
    return tuple(gold for gold in found if gold and gold not in _BARE)


def holds(text: str, golds: tuple[str, ...]) -> bool:
    """Returns whether a normalized text has the words of one of them in a row."""
    return any(f" {gold} " in f" {text} " for gold in golds)
