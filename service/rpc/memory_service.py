"""MemoryService."""

import asyncio

from palimpsest.v1 import memory_service_pb2_grpc
from service.rpc.memory_edits import MemoryEdits
from service.rpc.memory_history import MemoryHistory
from service.rpc.pages import Pages
from service.usecases.memories.edit import Editor
from service.usecases.memories.history import History
from service.usecases.memories.memories import Memories
from service.usecases.memories.watch import Watches


class MemoryService(MemoryEdits, MemoryHistory, memory_service_pb2_grpc.MemoryServiceServicer):
    """See memory_service.proto."""

    def __init__(
        self,
        memories: Memories,
        editor: Editor,
        history: History,
        watches: Watches,
        pages: Pages,
        stopping: asyncio.Event,
    ) -> None:
        self._memories = memories
        self._editor = editor
        self._history = history
        self._watches = watches
        self._pages = pages
        self._stopping = stopping
