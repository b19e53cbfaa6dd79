"""Amendments: what a PRISM revision does to a memory (definition 3.4)."""

from dataclasses import dataclass
from enum import StrEnum

from service.domain.json_values import Json
from service.domain.paths import Path


class Op(StrEnum):
    """What an amendment does at its path."""

    #: The path is new.
    ADD = "add"
    #: The path exists and gets a new value.
    UPDATE = "update"


@dataclass(frozen=True, kw_only=True, slots=True)
class Amendment:
    """One valid (path, op, value)."""

    path: Path
    op: Op
    #: Conforms to the schema's type at `path`.
    value: Json
    #: The model said the other op; whether the path exists decided.
    op_corrected: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """What a model proposed and the schema refused."""

    #: The proposal as it came, cut to 2,000 characters.
    proposal: str
    #: Why, in a sentence.
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Revision:
    """What one reply amounts to. Both parts may be empty."""

    #: In the order in which they apply.
    amendments: tuple[Amendment, ...]
    #: In the order in which they were proposed.
    rejections: tuple[Rejection, ...]
