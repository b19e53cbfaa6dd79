"""Reads what other services export, for `palimpsest import --from`.

Each module reads one format: it yields records, and what it cannot read. What is read is data:
nothing of it is a path, a format string or code.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from service.cli.importers import chat, langgraph, letta, mem0
from service.cli.importers.records import ImportedRecord, UnreadableRecord

#: What reads a format: from the JSON of a file, or of each of its lines.
Read = Callable[[Any], Iterator[ImportedRecord | UnreadableRecord]]


class ForeignFormat(StrEnum):
    """A format of another service."""

    MEM0 = "mem0"
    LETTA = "letta"
    LANGGRAPH = "langgraph"
    CHAT = "chat"


FORMATS: Mapping[ForeignFormat, Read] = {
    ForeignFormat.MEM0: mem0.read,
    ForeignFormat.LETTA: letta.read,
    ForeignFormat.LANGGRAPH: langgraph.read,
    ForeignFormat.CHAT: chat.read,
}
