"""Texts of values: what a string of JSON text stands for at a place of a memory."""

from service.domain.prism.amendments import Proposal
from service.domain.prism.literals import LiteralReader, plain
from service.domain.prism.schemas.tree import LiteralType, OptionalType, StrType, Type
from service.domain.values.json_values import Json, parse

#: How often a character may be looked at, on average, and what a short text may have.
_READINGS = 8
_MIN_CHARACTERS = 1000


def value_of(proposal: Proposal, of: Type) -> Json:
    """The value that a proposal means at a place of this type.

    A text that cannot be read stays one: the type says then what is wrong with it.
    """
    value = proposal.value
    if not proposal.is_text or not isinstance(value, str):
        return value
    bare = of.inner if isinstance(of, OptionalType) else of
    if isinstance(bare, StrType):
        return _text(value)
    if isinstance(bare, LiteralType) and value in bare.values:
        return value
    try:
        return _read(value)
    except ValueError:
        return value


def _text(value: str) -> Json:
    """What is meant where text is: a string of JSON, null, or the text as it is."""
    if value.strip() == "null":
        return None
    if not value.lstrip().startswith('"'):
        return value
    try:
        said = parse(value)
    except ValueError:
        return value
    return said if isinstance(said, str) else value


def _read(value: str) -> Json:
    """Raises ValueError."""
    reader = LiteralReader(value, _MIN_CHARACTERS + _READINGS * len(value))
    read = reader.value()
    reader.blank()
    if reader.at < len(value):
        reader.fail("something stands behind the value")
    return plain(read)
