"""What comes of browsing."""

from dataclasses import dataclass

from service.domain.dciso.pieces import Span
from service.domain.trajectory import NoAnswer


@dataclass(frozen=True, kw_only=True, slots=True)
class Browsed:
    """An answer, or why there is none."""

    #: Empty when there is none.
    text: str
    #: None when there is an answer.
    no_answer: NoAnswer | None
    #: Where it stands, most important first: at least one place, at most 20, when there is one.
    spans: tuple[Span, ...]
    #: Model calls that it took.
    calls: int
