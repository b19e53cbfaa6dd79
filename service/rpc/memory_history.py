"""What MemoryService has to look back at memories, and to watch them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from palimpsest.v1 import common_pb2, memories_pb2, memory_service_pb2
from service.rpc.convert import common, history
from service.rpc.interceptors.base import Context, deadline_of
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages, fitting
from service.rpc.streams import until_stopped
from service.telemetry import tracing
from service.telemetry.names import Attribute, SpanName
from service.usecases.memories.history import PROVENANCE_BYTES, History
from service.usecases.memories.memories import Memories
from service.usecases.memories.watch import Committed, Started, Watches
from storage.memories.memories import StoredMemory
from storage.prism.amendment_log import AmendmentFilter

#: Entries of a page of provenance when the client does not say, and at most.
DEFAULT_ENTRIES = 20
MAX_ENTRIES = 100


class MemoryHistory:
    """ListRevisions, ListAmendments, ListRejections, DiffMemories, GetProvenance and
    WatchMemory of MemoryService."""

    _memories: Memories
    _history: History
    _watches: Watches
    _pages: Pages
    _stopping: asyncio.Event

    async def ListRevisions(  # noqa: N802 - named by the proto
        self, request: memory_service_pb2.ListRevisionsRequest, context: Context
    ) -> memory_service_pb2.ListRevisionsResponse:
        """Lists the revisions of a memory."""
        scope = f"revisions/{request.session}/{request.memory}"
        await self._catch_up(request, context)
        stored, found = await self._history.revisions(
            current_tenant(),
            request.session,
            request.memory,
            int(self._pages.cursor(scope, request.page_token, first="-1")),
            self._pages.size(request.page_size),
            max_bytes=self._pages.max_bytes,
        )
        page, token = self._pages.cut(
            [history.revision(one) for one in found.items],
            scope,
            lambda one: str(one.revision),
            more=found.more,
        )
        return memory_service_pb2.ListRevisionsResponse(
            revisions=page, next_page_token=token, read_point=self._newest(stored)
        )

    async def ListAmendments(  # noqa: N802
        self, request: memory_service_pb2.ListAmendmentsRequest, context: Context
    ) -> memory_service_pb2.ListAmendmentsResponse:
        """Lists the amendments of a memory."""
        await self._catch_up(request, context)
        named = (current_tenant(), request.session, request.memory)
        wanted = AmendmentFilter(
            prefix=await self._history.prefix(*named, request.path_prefix)
            if request.path_prefix
            else None,
            from_position=request.positions.first,
            to_position=request.positions.last,
        )
        scope = f"amendments/{request.session}/{request.memory}/{wanted!r}"
        stored, found = await self._history.amendments(
            *named,
            self._cursor(scope, request.page_token),
            self._pages.size(request.page_size),
            wanted,
            max_bytes=self._pages.max_bytes,
        )
        page, token = self._pages.cut(
            [history.amendment(one) for one in found.items], scope, _ordinal_of, more=found.more
        )
        return memory_service_pb2.ListAmendmentsResponse(
            amendments=page, next_page_token=token, read_point=self._newest(stored)
        )

    async def ListRejections(  # noqa: N802
        self, request: memory_service_pb2.ListRejectionsRequest, context: Context
    ) -> memory_service_pb2.ListRejectionsResponse:
        """Lists what was proposed and refused."""
        scope = f"rejections/{request.session}/{request.memory}"
        await self._catch_up(request, context)
        stored, found = await self._history.rejections(
            current_tenant(),
            request.session,
            request.memory,
            self._cursor(scope, request.page_token),
            self._pages.size(request.page_size),
            max_bytes=self._pages.max_bytes,
        )
        page, token = self._pages.cut(
            [history.rejection(one) for one in found.items], scope, _ordinal_of, more=found.more
        )
        return memory_service_pb2.ListRejectionsResponse(
            rejections=page, next_page_token=token, read_point=self._newest(stored)
        )

    async def DiffMemories(  # noqa: N802
        self, request: memory_service_pb2.DiffMemoriesRequest, context: Context
    ) -> memory_service_pb2.DiffMemoriesResponse:
        """Compares two states."""
        other = request.other_memory or request.memory
        revision = request.revision if request.HasField("revision") else None
        other_revision = request.other_revision if request.HasField("other_revision") else None
        scope = f"diff/{request.session}/{request.memory}/{other}/{revision}/{other_revision}"
        size = self._pages.size(request.page_size)
        cursor = self._pages.cursor(scope, request.page_token, first="")
        skip = 0
        if cursor:
            # Later pages compare the same revisions as the first.
            revision, other_revision, skip = (int(part) for part in cursor.split("."))
        await self._catch_up(request, context, *{request.memory, other})
        found = await self._history.compare(
            current_tenant(),
            request.session,
            ((request.memory, revision), (other, other_revision)),
            skip=skip,
            limit=size,
        )
        changes = [history.difference(one) for one in found.differences]
        page = fitting(changes[:size], self._pages.max_bytes)
        old, new = (
            self._read_point(one.memory, one.revision, one.applied_position)
            for one in (found.old, found.new)
        )
        response = memory_service_pb2.DiffMemoriesResponse(
            differences=page, read_point=old, other_read_point=new
        )
        if len(changes) > len(page):
            response.next_page_token = self._pages.next(
                scope, f"{old.revision}.{new.revision}.{skip + len(page)}"
            )
        return response

    async def GetProvenance(  # noqa: N802
        self, request: memory_service_pb2.GetProvenanceRequest, context: Context
    ) -> memory_service_pb2.GetProvenanceResponse:
        """Explains a path."""
        revision = request.revision if request.HasField("revision") else None
        scope = f"provenance/{request.session}/{request.memory}/{revision}/{request.path}"
        size = min(request.page_size or DEFAULT_ENTRIES, MAX_ENTRIES)
        max_bytes = min(PROVENANCE_BYTES, self._pages.max_bytes)
        cursor = self._pages.cursor(scope, request.page_token, first="")
        before: tuple[int, int] | None = None
        if cursor:
            # Later pages explain the same revision as the first.
            revision, *last = (int(part) for part in cursor.split("."))
            before = (last[0], last[1])
        await self._catch_up(request, context)
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
        shown = [history.explained(entry) for entry in found.entries[:size]]
        page = fitting(shown, max_bytes)
        response = memory_service_pb2.GetProvenanceResponse(
            path=str(found.path),
            value_json=found.value,
            entries=page,
            read_point=self._read_point(found.memory, found.revision, found.applied_position),
        )
        if len(found.entries) > len(page):
            last_shown = page[-1].amendment
            response.next_page_token = self._pages.next(
                scope, f"{found.revision}.{last_shown.revision}.{last_shown.ordinal}"
            )
        return response

    async def WatchMemory(  # noqa: N802
        self, request: memory_service_pb2.WatchMemoryRequest, context: Context
    ) -> AsyncIterator[memory_service_pb2.WatchMemoryResponse]:
        """Streams each revision as it is committed."""
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
        async with aclosing(until_stopped(events, self._stopping)) as streamed:
            async for event in streamed:
                response = _event(event, self._pages.max_bytes)
                response.resume_token = self._pages.next(scope, str(response.after_revision))
                if isinstance(event, Committed):
                    _trace(event)
                yield response

    async def _catch_up(self, request: Any, context: Context, *memories: str) -> None:
        """Waits before the first page of a read; what the first page saw later ones see, too."""
        if request.page_token:
            return
        consistency = common.consistency(request.consistency)
        deadline = deadline_of(context)
        for memory in memories or (request.memory,):
            await self._memories.catch_up(
                current_tenant(), request.session, memory, consistency, deadline=deadline
            )

    def _cursor(self, scope: str, token: str) -> tuple[int, int]:
        cursor = self._pages.cursor(scope, token, first="0.0")
        revision, _, ordinal = cursor.partition(".")
        return int(revision), int(ordinal)

    def _newest(self, stored: StoredMemory) -> common_pb2.ReadPoint:
        return self._read_point(stored, stored.revision, stored.applied_position)

    def _read_point(
        self, stored: StoredMemory, revision: int, applied_position: int
    ) -> common_pb2.ReadPoint:
        token = self._memories.read_token(stored, applied_position)
        return common.read_point(revision, applied_position, token)


def _ordinal_of(entry: memories_pb2.Amendment | memories_pb2.Rejection) -> str:
    return f"{entry.revision}.{entry.ordinal}"


def _trace(event: Committed) -> None:
    """Leaves a span of an event that is sent, which leads to the one that committed it."""
    number = {Attribute.REVISION: event.revision.revision}
    tracing.mark(SpanName.WATCH_EVENT, event.trace, number)


def _event(event: Started | Committed, max_bytes: int) -> memory_service_pb2.WatchMemoryResponse:
    if isinstance(event, Started):
        return memory_service_pb2.WatchMemoryResponse(after_revision=event.after_revision)
    shown: Sequence[memories_pb2.Amendment] = fitting(
        [history.amendment(one) for one in event.amendments], max_bytes
    )
    return memory_service_pb2.WatchMemoryResponse(
        revision=history.revision(event.revision),
        amendments=shown,
        amendments_truncated=len(shown) < len(event.amendments),
        after_revision=event.revision.revision,
    )
