"""HistoryService."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from palimpsest.v1alpha1 import history_pb2, history_pb2_grpc
from service.rpc import past
from service.rpc.deadlines import deadline_of
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages, fitting
from service.rpc.streams import until_stopped
from service.telemetry import tracing
from service.telemetry.names import Attribute, SpanName
from service.usecases.memories.history import PROVENANCE_BYTES, History
from service.usecases.memories.watch import Committed, Started, Watches

#: Entries of a page of provenance when the client does not say.
DEFAULT_ENTRIES = 20


class HistoryService(history_pb2_grpc.HistoryServiceServicer):
    """See history.proto."""

    def __init__(
        self, history: History, watches: Watches, pages: Pages, stopping: asyncio.Event
    ) -> None:
        self._history = history
        self._watches = watches
        self._pages = pages
        self._stopping = stopping

    async def ListRevisions(  # noqa: N802 - named by the proto
        self, request: history_pb2.ListRevisionsRequest, context: Context
    ) -> history_pb2.ListRevisionsResponse:
        """Lists the revisions of a memory."""
        scope = f"revisions/{request.session}/{request.memory}"
        found = await self._history.revisions(
            current_tenant(),
            request.session,
            request.memory,
            int(self._pages.cursor(scope, request.page_token, first="-1")),
            self._pages.size(request.page_size),
            max_bytes=self._pages.max_bytes,
        )
        page, token = self._pages.cut(
            [past.revision(one) for one in found.items],
            scope,
            lambda one: str(one.revision),
            more=found.more,
        )
        return history_pb2.ListRevisionsResponse(revisions=page, next_page_token=token)

    async def GetProvenance(  # noqa: N802
        self, request: history_pb2.GetProvenanceRequest, context: Context
    ) -> history_pb2.GetProvenanceResponse:
        """Explains a path."""
        scope = f"provenance/{request.session}/{request.memory}/{request.path}"
        size = request.page_size or DEFAULT_ENTRIES
        max_bytes = min(PROVENANCE_BYTES, self._pages.max_bytes)
        cursor = self._pages.cursor(scope, request.page_token, first="")
        revision = request.revision if request.HasField("revision") else None
        before: tuple[int, int] | None = None
        if cursor:
            # Later pages explain the same revision as the first.
            revision, *last = (int(part) for part in cursor.split("."))
            before = (last[0], last[1])
        found = await self._history.provenance(
            current_tenant(),
            request.session,
            request.memory,
            request.path,
            revision=revision,
            before=before,
            limit=size,
            max_bytes=max_bytes,
        )
        shown = [past.explained(entry) for entry in found.entries[:size]]
        page = fitting(shown, max_bytes)
        response = history_pb2.GetProvenanceResponse(
            path=str(found.path),
            revision=found.revision,
            value_json=found.value,
            entries=page,
        )
        if len(found.entries) > len(page):
            last_shown = page[-1].amendment
            response.next_page_token = self._pages.next(
                scope, f"{found.revision}.{last_shown.revision}.{last_shown.ordinal}"
            )
        return response

    async def DiffMemories(  # noqa: N802
        self, request: history_pb2.DiffMemoriesRequest, context: Context
    ) -> history_pb2.DiffMemoriesResponse:
        """Compares two states."""
        other = request.other_memory or request.memory
        scope = f"diff/{request.session}/{request.memory}/{other}"
        size = self._pages.size(request.page_size)
        cursor = self._pages.cursor(scope, request.page_token, first="")
        revision = request.revision if request.HasField("revision") else None
        other_revision = request.other_revision if request.HasField("other_revision") else None
        skip = 0
        if cursor:
            # Later pages compare the same revisions as the first.
            revision, other_revision, skip = (int(part) for part in cursor.split("."))
        found = await self._history.compare(
            current_tenant(),
            request.session,
            ((request.memory, revision), (other, other_revision)),
            skip=skip,
            limit=size,
        )
        changes = [past.difference(one) for one in found.differences]
        page = fitting(changes[:size], self._pages.max_bytes)
        response = history_pb2.DiffMemoriesResponse(
            revision=found.revision, other_revision=found.other_revision, differences=page
        )
        if len(changes) > len(page):
            response.next_page_token = self._pages.next(
                scope, f"{found.revision}.{found.other_revision}.{skip + len(page)}"
            )
        return response

    async def WatchMemory(  # noqa: N802
        self, request: history_pb2.WatchMemoryRequest, context: Context
    ) -> AsyncIterator[history_pb2.WatchMemoryResponse]:
        """Tells each revision as it is committed."""
        scope = f"watch/{request.session}/{request.memory}"
        after: int | None = None
        if request.HasField("after_revision"):
            after = request.after_revision
        elif request.resume_token:
            cursor = self._pages.cursor(scope, request.resume_token, first="", field="resume_token")
            after = int(cursor)
        events = self._watches.watch(
            current_tenant(), request.session, request.memory, after, deadline=deadline_of(context)
        )
        async with aclosing(until_stopped(events, self._stopping)) as told:
            async for event in told:
                response = _told(event, self._pages.max_bytes)
                response.resume_token = self._pages.next(scope, str(_reached(event)))
                if isinstance(event, Committed):
                    _trace(event)
                yield response


def _trace(event: Committed) -> None:
    """Leaves a span of an event that is told, which leads to the one that committed it."""
    number = {Attribute.REVISION: event.revision.revision}
    tracing.mark(SpanName.WATCH_EVENT, event.trace, number)


def _reached(event: Started | Committed) -> int:
    return event.after_revision if isinstance(event, Started) else event.revision.revision


def _told(event: Started | Committed, max_bytes: int) -> history_pb2.WatchMemoryResponse:
    if isinstance(event, Started):
        started = history_pb2.WatchMemoryResponse.Started(after_revision=event.after_revision)
        return history_pb2.WatchMemoryResponse(started=started)
    shown = fitting([past.amendment(one) for one in event.amendments], max_bytes)
    return history_pb2.WatchMemoryResponse(
        committed=history_pb2.WatchMemoryResponse.Committed(
            revision=past.revision(event.revision),
            amendments=shown,
            amendments_truncated=len(shown) < len(event.amendments),
        )
    )
