"""Reads and writes the levels of trust in sources.

A rule of the session comes before one of the tenant, a whole source before a beginning, and a
longer beginning before a shorter one. Without a rule a source is trusted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from service.domain.access.merging import MergedRule
from service.domain.access.trust import SourceRule, Trust
from storage.engine.database import Transaction

#: Rules of one session, and of one tenant.
MAX_RULES = 256


#: SQL for whether the tenant has any rule, which is evaluated once for a statement.
_HAS_ANY = """(SELECT EXISTS (
    SELECT FROM source_trust a WHERE a.tenant_id = (SELECT current_setting('app.tenant')::uuid)
))"""


def matches(rule: str, source: str) -> str:
    """Returns the SQL condition that a rule applies to a source, given SQL of both."""
    return f"""({rule} = coalesce({source}, '') OR (right({rule}, 1) = '*'
            AND starts_with(coalesce({source}, ''), left({rule}, -1))))"""


def of_chunk(table: str = "c") -> str:
    """Returns SQL for the level of a chunk; NULL without a rule.

    Most tenants have no rule, which is looked up once for a statement. With one there are four
    look-ups by key for each chunk: about 5 µs, and as much with 255 rules of whole sources. Each
    rule of a beginning adds about half a microsecond.
    """
    keys = (f"{table}.session_key", f"{table}.tenant_id")
    rules = ", ".join(_of_rules("t.trust", key, table) for key in keys)
    return f"CASE WHEN {_HAS_ANY} THEN coalesce({rules}) END"


def quarantined_at(table: str = "c") -> str:
    """Returns SQL for when the source of a chunk was quarantined; NULL when it is not."""
    # A rule that is no quarantine comes before a less exact one that is. Tenants have none.
    since = "CASE WHEN t.trust_before IS NULL THEN '-infinity' ELSE t.updated_at END"
    return f"nullif(coalesce({_of_rules(since, f'{table}.session_key', table)}), '-infinity')"


def is_unread(revision: str, memory: str, table: str = "c") -> str:
    """Returns the SQL condition that a revision rests on no chunk of a source that is blocked.

    Its step passed the chunk. Not so where it says in other words what was read before it, unless
    that was undone when the source was quarantined.
    """
    keys = (f"{table}.session_key", f"{table}.tenant_id")
    since = "CASE t.trust WHEN 'blocked' THEN t.updated_at ELSE '-infinity' END"
    blocked_at = f"coalesce({', '.join(_of_rules(since, key, table) for key in keys)})"
    return f"""({blocked_at} <= {revision}.created_at
        AND ({memory}.kind = 'prism' AND {revision}.kind <> 'consolidation'
            OR {quarantined_at(table)} IS NOT NULL))"""


def _of_rules(value: str, key: str, table: str) -> str:
    """Returns SQL for a value of the rules t of a session or tenant that apply to a chunk.

    First of the one for the whole source, by key; then of that for its longest beginning.
    """
    # CASE rather than coalesce, which row-level security does not let into a look-up by key.
    source = f"CASE WHEN {table}.source IS NULL THEN '' ELSE {table}.source END"
    return f"""(SELECT {value} FROM source_trust t
        WHERE t.session_key = {key} AND t.source = {source}),
    (SELECT {value} FROM source_trust t
        WHERE t.session_key = {key} AND right(t.source, 1) = '*'
            AND starts_with({source}, left(t.source, -1))
        ORDER BY length(t.source) DESC LIMIT 1)"""  # noqa: S608 - all of it is ours


def at_least(least: Trust, table: str = "c") -> str:
    """Returns the SQL condition that a chunk is at least so trusted."""
    refused = [f"'{one.value}'" for one in Trust if not one.suffices(least)]
    return f"coalesce({of_chunk(table)}, 'trusted') NOT IN ({', '.join(refused)})"


#: Sources that a revision r read before they were quarantined, and did not skip: each is compared
#: once for all of its chunks, and first with the quarantines alone, which are few.
READ_SINCE = f"""SELECT FROM (
        SELECT DISTINCT c.session_key, c.source FROM chunk c
        WHERE c.session_key = %(session)s AND ({{read}})
    ) AS c
    WHERE CASE WHEN EXISTS (
            SELECT FROM source_trust q
            WHERE q.session_key = %(session)s AND q.trust_before IS NOT NULL
                AND q.updated_at > r.created_at AND {matches("q.source", "c.source")})
        THEN {quarantined_at()} > r.created_at END"""  # noqa: S608 - all of it is ours
BY_STEP = "c.position > r.from_position AND c.position <= r.to_position"


#: SQL for whether some source of a session may be less than trusted.
HAS_RULES = """EXISTS (
    SELECT FROM source_trust t WHERE t.trust <> 'trusted'
        AND t.session_key IN (%(session)s, current_setting('app.tenant')::uuid)
)"""


async def has_rules(tx: Transaction, session_key: UUID) -> bool:
    """Returns whether some source of a session may be less than trusted."""
    rows = await tx.fetch(f"SELECT {HAS_RULES}", {"session": session_key})
    return bool(rows[0][0])


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRange:
    """Chunks that a revision of a memory read."""

    memory_id: UUID
    revision: int
    #: The positions after this one …
    after: int
    #: … up to this one.
    upto: int


_LEAST = f"""
SELECT w.number, (
    SELECT max(CASE {of_chunk()} WHEN 'unverified' THEN 1
        WHEN 'blocked' THEN CASE WHEN {is_unread("r", "m")} THEN 0 ELSE 2 END ELSE 0 END)
    FROM chunk c
    WHERE c.session_key = %(session)s AND c.position > w.after AND c.position <= w.upto
)
FROM unnest(%(memories)s::uuid[], %(revisions)s::bigint[], %(after)s::bigint[], %(upto)s::bigint[])
    WITH ORDINALITY AS w (memory_id, revision, after, upto, number)
JOIN memory m ON m.session_key = %(session)s AND m.memory_id = w.memory_id
JOIN revision r ON r.session_key = %(session)s AND r.memory_id = w.memory_id
    AND r.revision = w.revision
"""  # noqa: S608 - all of it is ours


async def least_of_ranges(
    tx: Transaction, session_key: UUID, ranges: Sequence[ReadRange]
) -> Mapping[ReadRange, Trust]:
    """Returns the least trusted level of the chunks that revisions read."""
    wanted = list({one for one in ranges if one.after < one.upto})
    if not wanted or not await has_rules(tx, session_key):
        return dict.fromkeys(ranges, Trust.TRUSTED)
    values = {
        "session": session_key,
        "memories": [one.memory_id for one in wanted],
        "revisions": [one.revision for one in wanted],
        "after": [one.after for one in wanted],
        "upto": [one.upto for one in wanted],
    }
    levels = list(Trust)
    found = {wanted[row[0] - 1]: levels[row[1] or 0] for row in await tx.fetch(_LEAST, values)}
    return {one: found.get(one, Trust.TRUSTED) for one in ranges}


_LIST = """
SELECT session_key, source, trust, trust_before, updated_at FROM source_trust
WHERE session_key IN (%(session)s, %(tenant)s)
ORDER BY session_key <> %(session)s, source COLLATE "C"
"""


#: The level before of a source that had no rule when it was quarantined.
NONE = "none"


async def list_rules(tx: Transaction, session_key: UUID | None) -> Sequence[SourceRule]:
    """Returns the rules of a session, then those of the tenant; of None the latter alone."""
    values = {"session": session_key or tx.tenant_id, "tenant": tx.tenant_id}
    return [
        SourceRule(
            source=row.source,
            trust=Trust(row.trust),
            is_tenant_wide=row.session_key == tx.tenant_id,
            is_quarantined=row.trust_before is not None,
            updated_at=row.updated_at,
            trust_before=Trust(row.trust_before) if row.trust_before not in (None, NONE) else None,
        )
        for row in await tx.fetch(_LIST, values)
    ]


_SET = """
INSERT INTO source_trust (session_key, tenant_id, source, trust, updated_at)
SELECT %(key)s, %(tenant)s, %(source)s, %(trust)s, clock_timestamp()
WHERE EXISTS (SELECT FROM source_trust WHERE session_key = %(key)s AND source = %(source)s)
    OR (SELECT count(*) FROM source_trust WHERE session_key = %(key)s) < %(most)s
ON CONFLICT (session_key, source)
DO UPDATE SET trust = excluded.trust, updated_at = CASE source_trust.trust
    WHEN excluded.trust THEN source_trust.updated_at ELSE excluded.updated_at END
WHERE source_trust.trust_before IS NULL
RETURNING updated_at
"""
_REMOVE = """
DELETE FROM source_trust
WHERE session_key = %(key)s AND source = %(source)s AND trust_before IS NULL
"""


async def set_rule(tx: Transaction, key: UUID, source: str, trust: Trust) -> bool:
    """Writes the rule of a source, of the session or tenant `key`.

    False, and nothing is written, for a source that is quarantined, or with MAX_RULES others.
    """
    values = {"key": key, "tenant": tx.tenant_id, "source": source, "trust": trust.value}
    return bool(await tx.fetch(_SET, {**values, "most": MAX_RULES}))


async def remove_rule(tx: Transaction, key: UUID, source: str) -> bool:
    """Removes the rule of a source; False without one, and for one that is quarantined."""
    return await tx.execute(_REMOVE, {"key": key, "source": source}) == 1


_QUARANTINE = """
INSERT INTO source_trust (session_key, tenant_id, source, trust, trust_before, updated_at)
SELECT %(key)s, %(tenant)s, %(source)s, 'blocked', 'none', clock_timestamp()
WHERE EXISTS (SELECT FROM source_trust WHERE session_key = %(key)s AND source = %(source)s)
    OR (SELECT count(*) FROM source_trust WHERE session_key = %(key)s) < %(most)s
ON CONFLICT (session_key, source) DO UPDATE
SET trust = 'blocked', trust_before = source_trust.trust, updated_at = excluded.updated_at
WHERE source_trust.trust_before IS NULL
RETURNING updated_at
"""
# Without a rule from before none stays: it would come before one that is less exact.
_RELEASE = """
WITH held AS (
    SELECT session_key, source, trust_before, updated_at FROM source_trust
    WHERE session_key = %(key)s AND source = %(source)s AND trust_before IS NOT NULL FOR UPDATE
),
removed AS (
    DELETE FROM source_trust t USING held
    WHERE t.session_key = held.session_key AND t.source = held.source
        AND held.trust_before = 'none'
),
restored AS (
    UPDATE source_trust t SET trust = held.trust_before, trust_before = NULL, updated_at = now()
    FROM held
    WHERE t.session_key = held.session_key AND t.source = held.source
        AND held.trust_before <> 'none'
)
SELECT updated_at FROM held
"""
_LEVEL = f"""
SELECT coalesce({of_chunk()}, 'trusted')
FROM (SELECT %(key)s::uuid, %(tenant)s::uuid, %(source)s::text)
    AS c (session_key, tenant_id, source)
"""  # noqa: S608 - all of it is ours


async def quarantine(tx: Transaction, session_key: UUID, source: str) -> bool:
    """Blocks a source of a session until it is released; False with MAX_RULES others.

    The level before is kept, and whether it had one. The caller has fenced off the work on the
    session's memories: what is committed after this moment did not read the source. A source that
    is quarantined already stays so.
    """
    values = {"key": session_key, "tenant": tx.tenant_id, "source": source, "most": MAX_RULES}
    if await tx.fetch(_QUARANTINE, values):
        return True
    rules = await list_rules(tx, session_key)
    return any(one.source == source and one.is_quarantined for one in rules)


async def release(tx: Transaction, session_key: UUID, source: str) -> tuple[datetime, Trust] | None:
    """Gives a source its level from before; returns when it was quarantined, and that level.

    A source that had no rule has none again: rules for its beginnings apply. None for a source
    that is not quarantined.
    """
    values = {"key": session_key, "tenant": tx.tenant_id, "source": source}
    rows = await tx.fetch(_RELEASE, values)
    if not rows:
        return None
    ((level,),) = await tx.fetch(_LEVEL, values)
    return rows[0][0], Trust(level)


_CLEAR = "DELETE FROM source_trust WHERE session_key = %(key)s"
# A time in the future would make what comes until then older than the rule.
_WRITE = """
INSERT INTO source_trust (session_key, tenant_id, source, trust, trust_before, updated_at)
SELECT %(key)s, %(tenant)s, r.source, r.trust, r.before, least(r.updated_at, clock_timestamp())
FROM unnest(%(sources)s::text[], %(levels)s::text[], %(before)s::text[],
    %(updated)s::timestamptz[]) AS r (source, trust, before, updated_at)
"""


async def replace_rules(tx: Transaction, session_key: UUID, rules: Sequence[MergedRule]) -> None:
    """Writes all rules of a session that no step has read yet."""
    values = {
        "key": session_key,
        "tenant": tx.tenant_id,
        "sources": [one.source for one in rules],
        "levels": [one.trust.value for one in rules],
        "before": [(one.trust_before or NONE) if one.is_quarantined else None for one in rules],
        "updated": [one.updated_at for one in rules],
    }
    await tx.execute(_CLEAR, values)
    await tx.execute(_WRITE, values)
