"""Traces steps: each continues the appends that it reads, and watches continue its commit."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import structlog
from opentelemetry.trace import Span, SpanContext

from service.telemetry import logs, tracing
from service.telemetry.names import Attribute, GenAiOperation
from service.usecases.memories.memory_method import StepPart
from storage.engine import trace_contexts
from storage.engine.claims import Claim
from storage.engine.database import Database
from storage.engine.errors import StorageError
from storage.memories.revisions import NewRevision

_log = structlog.get_logger("palimpsest.traces")


async def _appends(database: Database, held: Claim, after: int, upto: int) -> Sequence[SpanContext]:
    """Returns the spans that appended the chunks of (after, upto], those that were sampled.

    Queries nothing where this process makes no spans.
    """
    if not tracing.is_on() or upto <= after:
        return ()
    try:
        async with database.direct(held.tenant_id, name="step") as tx:
            key = held.session_key
            found = await trace_contexts.read(tx, key, key, after=after, upto=upto)
    except StorageError as error:
        # Without links a step is as good.
        _log.warning("a step is not linked to its appends", cause=str(error))
        return ()
    return [context for _, context in found]


@asynccontextmanager
async def step(
    database: Database,
    held: Claim,
    part: StepPart[Any],
    *,
    level: int | None = None,
    causes: Sequence[SpanContext] | None = None,
) -> AsyncIterator[Span]:
    """Opens the span of a step, or of a part of one, and binds its revision to the log.

    It continues its `causes`; None: the appends that it reads.
    """
    if causes is None:
        causes = await _appends(database, held, part.after_position, part.to_position)
    with (
        logs.about(revision=held.revision + 1),
        tracing.process(held.spec.kind, causes, _of(held)) as span,
    ):
        span.set_attribute(Attribute.FROM_POSITION, part.after_position)
        span.set_attribute(Attribute.TO_POSITION, part.to_position)
        if level is not None:
            span.set_attribute(Attribute.LEVEL, level)
        yield span


@contextmanager
def commit(
    held: Claim, new: NewRevision, causes: Sequence[SpanContext] = ()
) -> Iterator[NewRevision]:
    """Opens the span of the write of the next revision, and yields that with its trace.

    `causes`: the steps whose results it commits, where it is within none of them.
    """
    attributes = {
        Attribute.GEN_AI_OPERATION_NAME: GenAiOperation.UPDATE_MEMORY,
        **_of(held),
        Attribute.TO_POSITION: new.to_position,
        Attribute.CHANGE: new.kind,
    }
    with tracing.following(GenAiOperation.UPDATE_MEMORY, causes, attributes):
        yield replace(new, trace=tracing.sampled())


def _of(held: Claim) -> dict[str, str | int]:
    return {
        Attribute.GEN_AI_MEMORY_STORE_ID: str(held.memory_id),
        Attribute.SESSION_KEY: str(held.session_key),
        Attribute.REVISION: held.revision + 1,
    }
