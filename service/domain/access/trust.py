"""Trust in the sources of chunks."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

#: A rule whose source ends with it applies to all sources with the beginning before it.
ANY_END = "*"


class Trust(StrEnum):
    """How much a source is trusted."""

    #: The default: nothing is different.
    TRUSTED = "trusted"
    #: Models read its chunks, and prompts name the level.
    UNVERIFIED = "unverified"
    #: Its chunks stay in the log, and nothing reads them.
    BLOCKED = "blocked"

    @property
    def rank(self) -> int:
        """Returns 0 for the most trusted level, 2 for the least."""
        return _RANKS[self]

    def suffices(self, least: "Trust") -> bool:
        """Returns whether it is at least as trusted as `least`."""
        return self.rank <= least.rank


_RANKS = {trust: number for number, trust in enumerate(Trust)}


def least_trust(levels: Iterable[Trust]) -> Trust:
    """Returns the least trusted of some levels; TRUSTED without any."""
    return max(levels, key=lambda one: one.rank, default=Trust.TRUSTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRule:
    """How much a source, or all sources with the same beginning, are trusted."""

    #: A source, or a beginning followed by ANY_END. Empty: chunks without a source.
    source: str
    trust: Trust
    #: Whether it applies to all sessions of the tenant that have no rule of their own.
    is_tenant_wide: bool = False
    #: It was quarantined: what was derived from it is undone. Then it is BLOCKED.
    is_quarantined: bool = False
    updated_at: datetime | None = None
    #: Its level before it was quarantined; None: it had no rule, or is not quarantined.
    trust_before: Trust | None = None
