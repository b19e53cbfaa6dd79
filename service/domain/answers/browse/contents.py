"""What the prompts of browsing say, as values: for models that are not language models."""

from dataclasses import dataclass

from service.domain.answers.browse.spec import BrowseAction, BrowseOption


@dataclass(frozen=True, kw_only=True, slots=True)
class UnderstandContent:
    """A query to be understood before anything is read."""

    query: str
    #: The options that may be chosen; with one nothing is to be chosen.
    options: tuple[BrowseOption, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceContent:
    """A piece, and what may be done with it."""

    query: str
    #: What to look for, where that is not the query.
    look_for: str
    #: Chunk number and text of its parts.
    parts: tuple[tuple[int, str], ...]
    #: What was extracted before; empty for nothing.
    notes: tuple[str, ...]
    #: In a fixed order; MOVE: the reply may be null.
    offers: tuple[BrowseAction, ...]
    #: Of the text of the reply, in tokens.
    max_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CloseContent:
    """What the answer is to be made from: notes, or the parts of the best pieces."""

    query: str
    look_for: str
    notes: tuple[str, ...]
    parts: tuple[tuple[int, str], ...]
    #: ANSWER, AGGREGATION, or both: then the reply chooses.
    offers: tuple[BrowseAction, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CondenseContent:
    """Notes to be made one."""

    query: str
    look_for: str
    notes: tuple[str, ...]
    #: Of the one, in tokens.
    max_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GuessContent:
    """Options, of which the likeliest is to be chosen."""

    query: str
    options: tuple[str, ...]
    #: Notes, or the pieces that fit best; none: nothing is known.
    texts: tuple[str, ...]


BrowseContent = UnderstandContent | PieceContent | CloseContent | CondenseContent | GuessContent
