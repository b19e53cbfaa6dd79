"""Pages of lists fit a message, whatever they hold, and no item is left out."""

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from palimpsest.v1 import memory_service_pb2
from service.domain.access.identity import LOCAL_IDENTITY, acting_as
from service.domain.prism.amendments import Op
from service.rpc.memory_history import MemoryHistory
from service.rpc.pages import Pages
from service.settings.config import Limits
from storage.engine.listing import ListPage
from storage.memories.history import StoredRevision
from storage.prism.amendment_log import LoggedAmendment, LoggedRejection

#: The default limit of a gRPC client's messages.
MESSAGE_BYTES = 4 * 1024 * 1024
WIDE = "\U0001f6a2"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def rejection(number: int) -> LoggedRejection:
    return LoggedRejection(
        revision=1,
        ordinal=number,
        from_position=0,
        to_position=1,
        proposal=WIDE * 2000,
        reason="it changes nothing",
        created_at=NOW,
    )


def amendment(number: int) -> LoggedAmendment:
    return LoggedAmendment(
        revision=1,
        ordinal=number,
        from_position=0,
        to_position=1,
        op=Op.ADD,
        path=f"$['topics']['{WIDE * 5000}']",
        value='"x"',
        op_corrected=False,
        kind="step",
        created_at=NOW,
    )


def revision(number: int) -> StoredRevision:
    return StoredRevision(
        revision=number,
        kind="schema",
        from_position=0,
        to_position=0,
        comment="",
        restored_revision=None,
        schema_source=WIDE * 15_000,
        digest=b"d" * 32,
        created_at=NOW,
        expired=False,
        amendments=0,
        rejections=0,
    )


class Past:
    """A history of as many items as are requested."""

    def __init__(self, make: Callable[[int], Any], count: int) -> None:
        self._items = [make(number) for number in range(1, count + 1)]

    async def _after(self, after: tuple[int, int], limit: int) -> tuple[Any, ListPage[Any]]:
        others = self._items[after[1] :]
        stored = SimpleNamespace(revision=1, applied_position=1)
        return stored, ListPage(items=others[:limit], more=len(others) > limit)

    async def rejections(self, *named: Any, max_bytes: int) -> tuple[Any, ListPage[Any]]:
        return await self._after(*named[3:])

    async def amendments(self, *named: Any, max_bytes: int) -> tuple[Any, ListPage[Any]]:
        return await self._after(*named[3:5])

    async def revisions(self, *named: Any, max_bytes: int) -> tuple[Any, ListPage[Any]]:
        _, _, _, after, limit = named
        return await self._after((0, max(after, 0)), limit)


class Memories:
    """Returns at once: the history is always fresh."""

    async def catch_up(self, *named: Any, deadline: float | None) -> None:
        return None

    def read_token(self, stored: Any, position: int) -> str:
        return "token"


@pytest.mark.parametrize(
    ("method", "request_type", "field", "make"),
    [
        ("ListRejections", memory_service_pb2.ListRejectionsRequest, "rejections", rejection),
        ("ListAmendments", memory_service_pb2.ListAmendmentsRequest, "amendments", amendment),
        ("ListRevisions", memory_service_pb2.ListRevisionsRequest, "revisions", revision),
    ],
)
async def test_a_page_fits_a_message_and_the_next_goes_on(
    method: str, request_type: Any, field: str, make: Any
) -> None:
    past: Any = Past(make, 1000)
    service: Any = MemoryHistory()
    service._history, service._pages = past, Pages(b"key", Limits())
    service._memories = Memories()
    context: Any = SimpleNamespace(time_remaining=lambda: None)
    with acting_as(LOCAL_IDENTITY):
        request = request_type(session="s", memory="m", page_size=1000)
        numbers: list[int] = []
        while True:
            response = await getattr(service, method)(request, context)
            assert response.ByteSize() < MESSAGE_BYTES
            found = getattr(response, field)
            assert len(found) > 0
            numbers += [one.revision if method == "ListRevisions" else one.ordinal for one in found]
            request.page_token = response.next_page_token
            if not request.page_token:
                break
    assert numbers == list(range(1, 1001))
