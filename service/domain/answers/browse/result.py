"""What comes of browsing."""

from dataclasses import dataclass

from service.domain.answers.browse.pieces import Span
from service.domain.answers.trajectory import NoAnswer


@dataclass(frozen=True, kw_only=True, slots=True)
class Browsed:
    """An answer, or why there is none."""

    #: Empty when there is none.
    text: str
    #: None when there is an answer.
    no_answer: NoAnswer | None
    #: Where it stands, most important first: at least one place, at most 20, when there is one;
    #: none of a guess.
    spans: tuple[Span, ...]
    #: Model calls that it took.
    calls: int
    #: Whether it is an option that was chosen although nothing that was read says so.
    guessed: bool = False
    #: Pieces that nothing was learned of: their text was refused, or no reply to it was of use.
    passed: int = 0
    #: Of the last of these, or of the answer that could not be made, a sentence that says why.
    cause: str = ""
