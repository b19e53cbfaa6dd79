"""The search index of documents: browsing and searching wait for it, so that runs compare."""

import asyncio

import palimpsest
from evaluation.sessions import Patience, spent_of
from evaluation.strategies import Failed, Spent, added
from palimpsest.v1 import session_service_pb2, session_service_pb2_grpc

LOOK_SECONDS = 0.2
#: What the ledger calls the vectors of chunks and queries.
_EMBEDDING = "embed"


class Indexes:
    """Waits for indexes, and knows what they cost."""

    def __init__(
        self, client: palimpsest.Client, *, wants_vectors: bool, timeout_seconds: float
    ) -> None:
        """With `wants_vectors` it waits for vectors also where there are none yet."""
        self._client = client
        self._wants_vectors = wants_vectors
        self._timeout = timeout_seconds
        self._spent: dict[str, Spent] = {}

    async def ready(self, session: palimpsest.Session) -> Spent:
        """Waits until everything in the log is in the index; what its vectors cost.

        Raises PalimpsestError; Failed when it does not get on.
        """
        if session.id not in self._spent:
            await self.wait(session.id)
            # Later the ledger has queries besides, which are in the answers' own sums.
            report = await session.usage()
            self._spent[session.id] = added(
                spent_of(line.usage) for line in report.lines if line.purpose == _EMBEDDING
            )
        return self._spent[session.id]

    async def wait(self, session: str) -> session_service_pb2.SearchIndex:
        """Returns the index, once it is at the head. Raises as `ready`."""
        stub = session_service_pb2_grpc.SessionServiceStub(self._client.channel)
        request = session_service_pb2.GetSearchIndexRequest(session=session)
        patience = Patience(f"the search index of {session!r}", self._timeout)
        while True:
            index: session_service_pb2.SearchIndex
            index = await self._client.call(stub.GetSearchIndex, request)
            if self._is_ready(index):
                return index
            try:
                patience.look(index.indexed_position + index.embedded_position)
            except Failed as error:
                raise Failed(f"{error}: {index.failure}" if index.failure else str(error)) from None
            await asyncio.sleep(LOOK_SECONDS)

    def _is_ready(self, index: session_service_pb2.SearchIndex) -> bool:
        if index.indexed_position < index.head:
            return False
        if index.vectors_unavailable or not (self._wants_vectors or index.embedding_model):
            return True
        return index.embedded_position >= index.head
