"""The Python client of Palimpsest.

    async with palimpsest.connect() as client:
        session = await client.create_session("user-42", exist_ok=True)
        memory = await session.create_memory("facts", SCHEMA, exist_ok=True)
        ack = await session.append("The harbour museum is closed on Mondays.")
        answer = await memory.ask("When is it closed?", after=ack.token)

`session.append` also takes messages ({"role": …, "content": …}) and lists of them, from any
number of processes; `session.producer` is for long streams from one.

`palimpsest.sync` has the same without `await`.
"""

from pkgutil import extend_path

# In a checkout the generated messages (palimpsest.v1) lie in another folder than
# this package; installed from wheels both are one folder and this changes nothing.
__path__ = extend_path(__path__, __name__)

from palimpsest.agents import Agent
from palimpsest.answer_values import (
    BrowseSettings,
    Choice,
    Question,
    Rating,
    TextPiece,
)
from palimpsest.answers import AnswerStream
from palimpsest.budgets import Budget, BudgetSet
from palimpsest.client import Client, connect
from palimpsest.edits import Edit
from palimpsest.errors import PalimpsestError
from palimpsest.memory import Memory
from palimpsest.navigation_values import NavigationStatistics, TrainingExample, TrajectoryEvent
from palimpsest.producer import Producer
from palimpsest.provenance import Provenance
from palimpsest.search_values import FoundChunk, SearchIndex, SearchResult
from palimpsest.session import Session
from palimpsest.state_values import ChatMessage, StateSettings, StateVector
from palimpsest.states import State
from palimpsest.tree_values import TextPart, TreeNode, TreeSettings
from palimpsest.trees import Tree
from palimpsest.values import (
    Ack,
    Amendment,
    Answer,
    Appended,
    Chunk,
    Citation,
    Committed,
    Diff,
    Difference,
    Flushed,
    Folded,
    Loss,
    MemoryInfo,
    MemoryState,
    MemoryStatus,
    ProvenanceEntry,
    RecentStep,
    Revised,
    Revision,
    SchemaDraft,
    SessionInfo,
    TreeOutline,
    Usage,
    WorkingContext,
)
from palimpsest.version import VERSION
from palimpsest.watch import Watch

#: As it is installed.
__version__ = VERSION

__all__ = [
    "Ack",
    "Agent",
    "Amendment",
    "Answer",
    "AnswerStream",
    "Appended",
    "BrowseSettings",
    "Budget",
    "BudgetSet",
    "ChatMessage",
    "Choice",
    "Chunk",
    "Citation",
    "Client",
    "Committed",
    "Diff",
    "Difference",
    "Edit",
    "Flushed",
    "Folded",
    "FoundChunk",
    "Loss",
    "Memory",
    "MemoryInfo",
    "MemoryState",
    "MemoryStatus",
    "NavigationStatistics",
    "PalimpsestError",
    "Producer",
    "Provenance",
    "ProvenanceEntry",
    "Question",
    "Rating",
    "RecentStep",
    "Revised",
    "Revision",
    "SchemaDraft",
    "SearchIndex",
    "SearchResult",
    "Session",
    "SessionInfo",
    "State",
    "StateSettings",
    "StateVector",
    "TextPart",
    "TextPiece",
    "TrainingExample",
    "TrajectoryEvent",
    "Tree",
    "TreeNode",
    "TreeOutline",
    "TreeSettings",
    "Usage",
    "Watch",
    "WorkingContext",
    "__version__",
    "connect",
]
