"""What browsing looks up besides asking a model."""

from dataclasses import dataclass

from service.domain.prompting.flows import Fetch


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadPiece(Fetch):
    """The text of a piece. Its reply is a `Piece`."""

    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPieces(Fetch):
    """The pieces that fit a query best. Its reply is a tuple of their frames, best first: at
    most `count`, none that does not fit at all. Of a log that is too long to be decomposed some
    may be none of those that the browsing was given; `ReadPiece` knows them by now."""

    query: str
    #: 1 or more.
    count: int
    #: Whether a model is to order them.
    rerank: bool = False
