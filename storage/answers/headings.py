"""Reads thread, source and time of cited chunks with their answer."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, literal_column

from service.domain.access.trust import Trust
from storage.access import source_trust


@dataclass(frozen=True, kw_only=True, slots=True)
class Heading:
    """Thread, source and time of a cited chunk; '' and None where it has none."""

    thread: str
    source: str
    occurred_at: datetime | None
    #: How much the source is trusted now.
    trust: Trust = Trust.TRUSTED


# Each by its key, and nothing but '[]' where nothing is cited yet.
HEADINGS: ColumnElement[Any] = literal_column(f"""(
    SELECT jsonb_object_agg(c.position, jsonb_build_array(c.thread, c.source,
        (extract(epoch FROM c.occurred_at) * 1000000)::bigint, c.trust))
    FROM jsonb_array_elements(answer.citations) AS cited, LATERAL (
        SELECT position, thread, source, occurred_at, {source_trust.of_chunk("chunk")} AS trust
        FROM chunk
        WHERE chunk.session_key = answer.session_key
            AND chunk.position = (cited->>'position')::bigint
        LIMIT 1
    ) AS c
    WHERE c.thread IS NOT NULL OR c.source IS NOT NULL OR c.occurred_at IS NOT NULL
)""")  # noqa: S608 - all of it is ours
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def heading_of(
    thread: str | None, source: str | None, microseconds: int | None, trust: str | None = None
) -> Heading:
    """Returns the heading of one chunk in a row of HEADINGS."""
    at = None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)
    level = Trust(trust) if trust else Trust.TRUSTED
    return Heading(thread=thread or "", source=source or "", occurred_at=at, trust=level)
