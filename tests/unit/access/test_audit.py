"""The chain of the audit log: any change of an event shows."""

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from service.domain.access.audit import (
    NO_DIGEST,
    AuditAction,
    AuditEntry,
    AuditEvent,
    broken_at,
    canonical,
    digest_of,
)

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
TENANT = UUID(int=7)


def chain(count: int) -> list[AuditEvent]:
    events: list[AuditEvent] = []
    before = NO_DIGEST
    for number in range(1, count + 1):
        event = AuditEvent(
            tenant_id=TENANT,
            sequence=number,
            occurred_at=NOON + timedelta(seconds=number),
            principal="key:abc",
            entry=AuditEntry(
                action=AuditAction.KEY_CREATE, target=f"k{number}", details={"n": number}
            ),
        )
        before = digest_of(event, before)
        events.append(replace(event, digest=before))
    return events


def test_the_digest_is_what_the_guide_says() -> None:
    (event,) = chain(1)
    text = (
        '{"action":"key.create","details":{"n":1},"memory":"",'
        '"occurred_at":"2026-11-30T12:00:01.000000Z","principal":"key:abc","sequence":1,'
        '"session":"","target":"k1","tenant_id":"00000000-0000-0000-0000-000000000007"}'
    )
    assert canonical(event).decode() == text
    assert event.digest == hashlib.sha256(bytes(32) + text.encode()).digest()


def test_a_time_has_one_form_wherever_it_was_read() -> None:
    (event,) = chain(1)
    elsewhere = event.occurred_at.astimezone(timezone(timedelta(hours=5)))
    assert canonical(replace(event, occurred_at=elsewhere)) == canonical(event)


def test_a_chain_is_whole_from_its_beginning_or_from_any_known_event() -> None:
    events = chain(5)
    assert broken_at(events, after=(0, NO_DIGEST)) is None
    assert broken_at(events[2:], after=(2, events[1].digest)) is None
    assert broken_at([], after=(0, NO_DIGEST)) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, principal="key:abd"),
        lambda one: replace(one, occurred_at=one.occurred_at + timedelta(microseconds=1)),
        lambda one: replace(one, tenant_id=UUID(int=8)),
        lambda one: replace(one, digest=bytes(32)),
        lambda one: replace(one, entry=replace(one.entry, action=AuditAction.KEY_REVOKE)),
        lambda one: replace(one, entry=replace(one.entry, target="k9")),
        lambda one: replace(one, entry=replace(one.entry, session="s")),
        lambda one: replace(one, entry=replace(one.entry, memory="m")),
        lambda one: replace(one, entry=replace(one.entry, details={"n": True})),
    ],
)
def test_a_changed_event_breaks_the_chain_where_it_is(change: object) -> None:
    events = chain(4)
    events[1] = change(events[1])  # type: ignore[operator]
    assert broken_at(events, after=(0, NO_DIGEST)) == 2


def test_a_removed_moved_or_added_event_breaks_the_chain() -> None:
    whole = chain(4)
    for events in (whole[1:], whole[:1] + whole[2:], [whole[1], whole[0]], [whole[0], *whole]):
        assert broken_at(events, after=(0, NO_DIGEST)) is not None
    # A forged event with a digest of its own breaks the next one.
    forged = replace(whole[1], principal="key:other")
    forged = replace(forged, digest=digest_of(forged, whole[0].digest))
    assert broken_at([whole[0], forged, *whole[2:]], after=(0, NO_DIGEST)) == 3


def test_canonical_json_reads_back_as_it_was() -> None:
    entry = AuditEntry(action=AuditAction.SESSION_DELETE, session="josé \u2028 “x”")
    event = AuditEvent(
        tenant_id=TENANT, sequence=1, occurred_at=NOON, principal="local", entry=entry
    )
    assert json.loads(canonical(event))["session"] == entry.session
