"""Which questions of a dataset are asked."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from fractions import Fraction

from evaluation.datasets import Document

#: Where in its document a document's first question is taken from moves on by this share:
#: questions mostly follow the text, and a strategy that reads one end of it must not gain
#: or lose by that. (The golden section spreads most evenly.)
_SHIFT = Fraction(987, 1597)


class Half(StrEnum):
    """A half of a dataset's documents."""

    #: What settings are chosen by.
    DEV = "dev"
    #: What is reported of them.
    TEST = "test"


def half_of(document: Document) -> Half:
    """Returns the half that a document is in, by its id alone."""
    first = hashlib.sha256(document.id.encode()).digest()[0]
    return Half.TEST if first % 2 else Half.DEV


def choose(
    documents: Sequence[Document], limit: int, *, shortest: bool = False, most: int = 0
) -> list[Document]:
    """Documents with `limit` questions in all (1 or more), or all when there are fewer.

    About as many of each document, in the order of the file, spread over its questions;
    the same at each run. With `shortest` the documents with the least text come first,
    so that they get the questions that do not go round. Those without a question left
    are left out. `most` bounds how many there are, unless it is 0.
    """
    asked = [one for one in documents if one.questions]
    ranked = sorted(asked, key=lambda one: one.characters) if shortest else asked
    ranked = ranked[:most] if most else ranked
    counts = _shares([len(one.questions) for one in ranked], limit)
    chosen: dict[str, Document] = {}
    for number, (document, count) in enumerate(zip(ranked, counts, strict=True)):
        if count:
            picked = _spread(len(document.questions), count, (number * _SHIFT) % 1)
            questions = tuple(document.questions[at] for at in picked)
            chosen[document.id] = replace(document, questions=questions)
    return [chosen[one.id] for one in asked if one.id in chosen]


def _shares(held: Sequence[int], limit: int) -> list[int]:
    """Returns how many each gets when they are dealt out in turn."""
    shares = [0] * len(held)
    left = min(limit, sum(held))
    while left:
        for number, most in enumerate(held):
            if left and shares[number] < most:
                shares[number] += 1
                left -= 1
    return shares


def _spread(held: int, count: int, shift: Fraction) -> list[int]:
    """`count` of `held` numbers from 0, evenly, the first `shift` into its part."""
    return [int((part + shift) * held / count) for part in range(count)]
