"""Merges the rules of an imported session with those of the tenant that imports it.

A rule of a session comes before all of its tenant. So a rule of a file is not written as it is:
it could raise what the tenant blocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from service.domain.access.trust import ANY_END, SourceRule, Trust, least_trust


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedRule:
    """A rule of an imported session."""

    source: str
    trust: Trust
    #: The level after the release of a quarantine; None: that of less exact rules.
    trust_before: Trust | None = None
    is_quarantined: bool = False
    #: When the level was set; None: by the import, which made it stricter.
    updated_at: datetime | None = None


def merge_rules(own: Sequence[SourceRule], tenant: Sequence[SourceRule]) -> Sequence[MergedRule]:
    """Returns rules by which each source has the stricter level of both, and few of them.

    Quarantines stay in effect; after their release no source is more trusted than by both. All
    sources with the same most exact rule have the same levels, so each rule is compared once.
    """
    rules = {one.source: one for one in own}
    ordered = {one.source: one.trust for one in tenant}
    now = {one.source: one.trust for one in own}
    # As if all quarantines were released.
    before = {one.source: one.trust_before or one.trust for one in own if _has_level(one)}
    merged: list[MergedRule] = []
    written_now: dict[str, Trust] = {}
    written_before: dict[str, Trust] = {}
    # Less exact rules first: they apply where no other is written.
    for source in sorted({*rules, *ordered}, key=_exactness):
        least = _level(ordered, source)
        level = least_trust((_level(now, source), least))
        after = least_trust((_level(before, source), least))
        is_open = after is not _level(written_before, source, default=least)
        rule = rules.get(source)
        if rule is not None and rule.is_quarantined:
            written_now[source] = Trust.BLOCKED
            if is_open:
                written_before[source] = after
            merged.append(
                MergedRule(
                    source=source,
                    trust=Trust.BLOCKED,
                    trust_before=after if is_open else None,
                    is_quarantined=True,
                    updated_at=rule.updated_at,
                )
            )
        elif is_open or level is not _level(written_now, source, default=least):
            written_now[source] = written_before[source] = level
            is_same = rule is not None and rule.trust is level
            at = rule.updated_at if rule is not None and is_same else None
            merged.append(MergedRule(source=source, trust=level, updated_at=at))
    return merged


def _has_level(rule: SourceRule) -> bool:
    return not rule.is_quarantined or rule.trust_before is not None


def _exactness(source: str) -> tuple[bool, int, str]:
    return not source.endswith(ANY_END), len(source), source


def _level(rules: Mapping[str, Trust], source: str, *, default: Trust = Trust.TRUSTED) -> Trust:
    """Returns the level of the most exact rule for a source, or for a beginning of sources."""
    found = [one for one in rules if one == source or _begins(one, source)]
    return rules[max(found, key=_exactness)] if found else default


def _begins(rule: str, source: str) -> bool:
    return rule.endswith(ANY_END) and source.startswith(rule.removesuffix(ANY_END))
