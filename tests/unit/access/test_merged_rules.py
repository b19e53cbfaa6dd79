"""Tests that merged rules make no source more trusted than the file's or the tenant's."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from service.domain.access.merging import MergedRule, merge_rules
from service.domain.access.trust import SourceRule, Trust, least_trust

AT = datetime(2026, 1, 1, tzinfo=UTC)
SOURCES = ["", "a", "ab", "abc", "b", "ba"]
PATTERNS = [*SOURCES, "*", "a*", "ab*", "b*"]
LEVELS = st.sampled_from(list(Trust))


def rule(source: str, trust: Trust) -> SourceRule:
    return SourceRule(source=source, trust=trust, updated_at=AT)


def quarantined(source: str, before: Trust | None) -> SourceRule:
    given = rule(source, Trust.BLOCKED)
    return replace(given, is_quarantined=True, trust_before=before)


@st.composite
def rules(draw: st.DrawFn, *, has_quarantines: bool) -> list[SourceRule]:
    found = []
    for source in draw(st.lists(st.sampled_from(PATTERNS), unique=True, max_size=5)):
        if has_quarantines and draw(st.booleans()):
            found.append(quarantined(source, draw(st.none() | LEVELS)))
        else:
            found.append(rule(source, draw(LEVELS)))
    return found


def released(given: Sequence[SourceRule]) -> list[SourceRule]:
    """Returns the rules as if all quarantines were released."""
    return [
        replace(one, trust=one.trust_before or one.trust)
        for one in given
        if not one.is_quarantined or one.trust_before is not None
    ]


def level(source: str, *rules: Sequence[SourceRule]) -> Trust:
    """Returns the level of a source: rules of a session come first."""
    for of in rules:
        found = [
            one
            for one in of
            if one.source == source
            or (one.source.endswith("*") and source.startswith(one.source[:-1]))
        ]
        if found:
            return max(found, key=lambda one: (one.source == source, len(one.source))).trust
    return Trust.TRUSTED


def as_rules(merged: Sequence[MergedRule]) -> list[SourceRule]:
    return [
        SourceRule(
            source=one.source,
            trust=one.trust,
            is_quarantined=one.is_quarantined,
            trust_before=one.trust_before,
        )
        for one in merged
    ]


@given(rules(has_quarantines=True), rules(has_quarantines=False))
def test_each_source_has_the_stricter_level(
    own: list[SourceRule], tenant: list[SourceRule]
) -> None:
    merged = as_rules(merge_rules(own, tenant))
    for source in SOURCES:
        wanted = least_trust((level(source, own), level(source, tenant)))
        assert level(source, merged, tenant) is wanted
        after = least_trust((level(source, released(own)), level(source, tenant)))
        assert level(source, released(merged), tenant).rank >= after.rank
    held = {one.source for one in merged if one.is_quarantined}
    assert held == {one.source for one in own if one.is_quarantined}


@given(rules(has_quarantines=True))
def test_without_rules_of_the_tenant_all_levels_stay(own: list[SourceRule]) -> None:
    merged = as_rules(merge_rules(own, []))
    for source in SOURCES:
        assert level(source, released(merged)) is level(source, released(own))


@given(rules(has_quarantines=False))
def test_what_the_tenant_orders_already_is_not_written(tenant: list[SourceRule]) -> None:
    assert merge_rules(tenant, tenant) == []


def test_a_level_keeps_its_time_unless_the_tenant_makes_it_stricter() -> None:
    own = [rule("a", Trust.UNVERIFIED), rule("b*", Trust.UNVERIFIED)]
    merged = merge_rules(own, [rule("b", Trust.BLOCKED), rule("a*", Trust.TRUSTED)])
    assert [(one.source, one.trust, one.updated_at) for one in merged] == [
        ("b*", Trust.UNVERIFIED, AT),
        ("a", Trust.UNVERIFIED, AT),
        ("b", Trust.BLOCKED, None),
    ]
