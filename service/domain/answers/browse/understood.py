"""What task understanding says of a query (arXiv 2405.15318, section 4.2)."""

from dataclasses import dataclass
from enum import StrEnum

from service.domain.answers.browse.spec import BrowseOption, ReadingOrder


class QuerySubject(StrEnum):
    """What a query is about."""

    #: Something that stands in one place or in a few.
    FACT = "fact"
    #: How things are now, where they change.
    STATE = "state"
    #: The whole: a summary, a list, a count, a comparison.
    OVERVIEW = "overview"
    #: Code that is to be continued.
    CODE = "code"


@dataclass(frozen=True, kw_only=True, slots=True)
class Understanding:
    """A query, understood."""

    subject: QuerySubject
    #: RANK, CARRY, INDEPENDENT or SCAN.
    option: BrowseOption
    #: FORWARD or BACKWARD.
    order: ReadingOrder
    #: The query in words that fit reading piece by piece.
    query: str
