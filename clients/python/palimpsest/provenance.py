"""Where the value at a path of a memory comes from."""

import json
from collections.abc import AsyncIterator
from typing import Any

from palimpsest import convert, values
from palimpsest.connection import Connection
from palimpsest.v1 import history_pb2, history_pb2_grpc


class Provenance:
    """What a path holds, and the amendments that made it, newest first.

        why = await memory.provenance("$['opening_hours']")
        print(why.value)
        async for entry in why:
            print(entry.amendment.revision, [chunk.text for chunk in entry.chunks])

    Entries come in pages, as they are needed; each loop begins at the newest. What a
    rollback undid is not among them.
    """

    def __init__(
        self,
        connection: Connection,
        request: history_pb2.GetProvenanceRequest,
        first: history_pb2.GetProvenanceResponse,
    ) -> None:
        self._connection = connection
        self._request = request
        self._first = first
        #: The path as an RFC 9535 normalized path.
        self.path: str = first.path
        #: The revision that is explained.
        self.revision: int = first.revision
        #: Whether the path holds anything; if not, the entries say what took it away.
        self.exists: bool = first.HasField("value_json")
        #: What it holds.
        self.value: Any = json.loads(first.value_json) if self.exists else None

    @classmethod
    async def read(
        cls, connection: Connection, request: history_pb2.GetProvenanceRequest
    ) -> "Provenance":
        """Reads the first page."""
        stub = history_pb2_grpc.HistoryServiceStub(connection.channel)
        return cls(connection, request, await connection.call(stub.GetProvenance, request))

    async def __aiter__(self) -> AsyncIterator[values.ProvenanceEntry]:
        """The entries."""
        for message in self._first.entries:
            yield convert.provenance_entry(message)
        if not self._first.next_page_token:
            return
        stub = history_pb2_grpc.HistoryServiceStub(self._connection.channel)
        request = history_pb2.GetProvenanceRequest()
        request.CopyFrom(self._request)
        request.page_token = self._first.next_page_token
        async for page in self._connection.pages(stub.GetProvenance, request):
            for message in page.entries:
                yield convert.provenance_entry(message)
