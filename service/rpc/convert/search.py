"""Searches, and how far their index is."""

from collections.abc import Sequence

from palimpsest.v1 import session_service_pb2
from service.domain.search.recall import RecallKind, RecallPart
from service.rpc.convert.chunks import chunk_filter, write_chunk
from service.rpc.convert.common import (
    characters,
    message_of,
    numbers_of,
    positions,
    read_point,
    trust_number,
)
from service.settings.config import Limits
from service.usecases.search.memories import EntryQuery, EntrySearch
from service.usecases.search.recall import DEFAULT_TOKENS, Recalled, RecallQuery
from service.usecases.search.search import (
    FoundPage,
    SearchHit,
    SearchMode,
    SearchQuery,
)
from storage.search.entry_search import FoundEntry, SearchedMemory
from storage.search.finding import SearchPlace

#: Chunks of a search that names no limit, and the most that it returns.
DEFAULT_LIMIT, MAX_LIMIT = 10, 100

MODES = numbers_of(SearchMode, session_service_pb2.SearchMode, "SEARCH_MODE_", SearchMode.DEFAULT)
_SECTIONS = {
    RecallKind.MEMORY: session_service_pb2.RECALL_SECTION_MEMORY,
    RecallKind.CHUNK: session_service_pb2.RECALL_SECTION_CHUNKS,
    RecallKind.UNREAD: session_service_pb2.RECALL_SECTION_UNREAD,
}
_KINDS_OF = {number: kind for kind, number in _SECTIONS.items()}
_MODES_OF = {number: mode for mode, number in MODES.items()}


def query(request: session_service_pb2.SearchChunksRequest, limits: Limits) -> SearchQuery:
    """Returns what to search for. Raises InvalidInput."""
    return SearchQuery(
        query=request.query,
        limit=min(request.limit or DEFAULT_LIMIT, MAX_LIMIT),
        mode=_MODES_OF[request.mode],
        filter=chunk_filter(request.filter, limits) if request.HasField("filter") else None,
        rerank=request.rerank,
    )


def result(
    page: FoundPage, hit: SearchHit, rank: int
) -> session_service_pb2.SearchChunksResponse.Result:
    """Returns a chunk that matches, and how well."""
    message = message_of(
        session_service_pb2.SearchChunksResponse.Result,
        hit,
        rank=rank,
        characters=characters(hit.from_character, hit.to_character),
        chunk=None,
    )
    write_chunk(page.chunks[hit.position], message.chunk)
    return message


def entry_query(request: session_service_pb2.SearchMemoriesRequest, limits: Limits) -> EntryQuery:
    """Returns what to search for in memories. Raises InvalidInput."""
    wanted = request.filter
    return EntryQuery(
        query=request.query,
        limit=min(request.limit or DEFAULT_LIMIT, MAX_LIMIT),
        mode=_MODES_OF[request.mode],
        memories=tuple(wanted.memories),
        path_prefix=wanted.path_prefix,
        chunks=chunk_filter(wanted.chunks, limits) if wanted.HasField("chunks") else None,
    )


def entry_results(
    found: EntrySearch,
) -> Sequence[session_service_pb2.SearchMemoriesResponse.Result]:
    """Returns the entries that match, and how well."""
    names = {one.memory_id: one.name for one, _ in found.memories}
    return [
        message_of(
            session_service_pb2.SearchMemoriesResponse.Result,
            hit,
            rank=rank,
            entry=_entry(hit.found, names[hit.found.memory_id]),
        )
        for rank, hit in enumerate(found.hits, 1)
    ]


def _entry(found: FoundEntry, memory: str) -> session_service_pb2.SearchMemoriesResponse.Entry:
    return session_service_pb2.SearchMemoriesResponse.Entry(
        memory=memory,
        path=found.entry.path,
        part=found.entry.part,
        value_json=found.entry.value,
        text=found.entry.text,
        revision=found.revision,
        positions=positions(found.first_position, found.last_position),
        trust=trust_number(found.trust),
    )


def searched(
    memory: SearchedMemory, token: str
) -> session_service_pb2.SearchMemoriesResponse.Memory:
    """Returns what was read of a memory."""
    return session_service_pb2.SearchMemoriesResponse.Memory(
        memory=memory.name,
        read_point=read_point(memory.revision, memory.applied_position, token),
        behind=memory.is_behind,
    )


def index(state: SearchPlace) -> session_service_pb2.SearchIndex:
    """Returns how far an index is."""
    return message_of(session_service_pb2.SearchIndex, state)


def recall_query(request: session_service_pb2.RecallRequest, limits: Limits) -> RecallQuery:
    """Returns what to recall. Raises InvalidInput."""
    return RecallQuery(
        query=request.query,
        max_tokens=min(request.max_tokens or DEFAULT_TOKENS, limits.max_recall_tokens),
        memories=request.memories,
        filter=chunk_filter(request.filter, limits) if request.HasField("filter") else None,
        mode=_MODES_OF[request.mode],
        kinds=frozenset(_KINDS_OF[one] for one in request.sections),
    )


def recalled(found: Recalled) -> session_service_pb2.RecallResponse:
    """Returns what was recalled."""
    response = session_service_pb2.RecallResponse
    return response(
        text=found.recalled.text,
        parts=[_part(one) for one in found.recalled.parts],
        tokens=found.recalled.tokens,
        memories=[message_of(response.Memory, one) for one in found.memories],
        mode=MODES[found.page.mode] if found.page else session_service_pb2.SEARCH_MODE_UNSPECIFIED,
        index=index(found.page.index) if found.page else None,
        read_point=read_point(0, found.head, found.token),
    )


def _part(part: RecallPart) -> session_service_pb2.RecallResponse.Part:
    return message_of(
        session_service_pb2.RecallResponse.Part,
        part,
        section=_SECTIONS[part.kind],
        positions=positions(part.first_position, part.last_position),
        characters=characters(part.from_character, part.to_character),
    )
