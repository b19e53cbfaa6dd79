"""What the automatic reader knows of a session before it chooses, gathered at one moment."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from service.domain.answers import whole
from service.domain.answers.choosing import MemoryFacts, SessionFacts
from service.domain.prompting.tokens import TOKEN_BYTES
from service.domain.spend.prices import ModelPrices
from service.domain.tree.spec import Navigable, TreeSpec
from service.llm.offloading import beside
from service.llm.providers.facts import ModelFacts
from service.usecases.answers.readers.answering import ReaderKit, ReadKind
from service.usecases.answers.readers.log_range import filter_of
from service.usecases.answers.readers.whole import read_log
from storage.answers.answers import StoredAnswer
from storage.engine.database import Transaction
from storage.log import sessions
from storage.memories import memories
from storage.memories.memories import StoredMemory
from storage.search.finding import read_index_progress
from storage.search.words import TAIL_CHUNKS


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """What a choice is made from."""

    facts: SessionFacts
    #: The memories of the session, by their ids.
    memories: Mapping[UUID, StoredMemory]


@dataclass(frozen=True, kw_only=True, slots=True)
class Knowledge:
    """What is known of models, and of what this process can do."""

    kit: ReaderKit
    #: By the names of the kinds of memories.
    kinds: Mapping[str, ReadKind]
    #: None: prices are not known.
    prices: Callable[[str], ModelPrices] | None
    #: Whether logs can be browsed.
    browses: bool


async def gather(tx: Transaction, asked: StoredAnswer, known: Knowledge) -> Gathered:
    """Reads the facts of a question's session."""
    key, head = asked.session_key, asked.applied_position
    session = await sessions.get(tx, key)
    assert session is not None, "the answer's foreign key keeps its session"
    wanted = filter_of(asked)
    # What a memory has may rest on any source, and only the log can be filtered.
    is_filtered = wanted is not None and wanted.min_trust is not None and not asked.memory_name
    stored = () if is_filtered else await memories.list_all(tx, key)
    shown = await _shown_bytes(tx, stored, head, known)
    model = asked.wanted_model or known.kit.config.model
    # Too many where there is much metadata, which no model reads: it only orders the choices.
    log_tokens = -(-session.content_bytes // TOKEN_BYTES)
    progress = (await read_index_progress(tx, [key]))[key]
    facts = SessionFacts(
        head=head,
        log_tokens=log_tokens,
        whole_tokens=await _whole_tokens(tx, asked, known.kit.facts(model), known),
        memories=[_memory(one, shown[one.memory_id], head, log_tokens, known) for one in stored],
        named=asked.memory_name,
        wanted_position=asked.wanted_position,
        navigation=asked.navigation,
        browsing=asked.browsing,
        browses=known.browses,
        unsearched=max(head - progress.indexed_position - TAIL_CHUNKS, 0),
        prices=known.prices(model) if known.prices else None,
    )
    return Gathered(facts=facts, memories={one.memory_id: one for one in stored})


async def _whole_tokens(
    tx: Transaction, asked: StoredAnswer, facts: ModelFacts, known: Knowledge
) -> int | None:
    """Returns the tokens of the whole log in a prompt with its reply; None: they are too many."""
    window = min(facts.window_tokens, known.kit.config.auto_whole_tokens)
    bounded = ModelFacts(window_tokens=window, count=facts.count)
    read = await read_log(tx, asked, bounded)
    if read is None:
        return None
    chunks, unverified = read
    return await beside(
        whole.needed_tokens,
        chunks,
        asked.worded,
        unverified=unverified,
        **bounded.terms(known.kit.marker_key),
    )


async def _shown_bytes(
    tx: Transaction, stored: Sequence[StoredMemory], head: int, known: Knowledge
) -> Mapping[UUID, int]:
    """Returns what one prompt shows of each memory; reads all memories of a kind together."""
    found: dict[UUID, int] = {}
    for kind in {one.spec.kind for one in stored}:
        of_kind = [one for one in stored if one.spec.kind == kind]
        sizes = await known.kinds[kind].use_cases.shown_bytes(tx, of_kind, head)
        found |= {one.memory_id: size for one, size in zip(of_kind, sizes, strict=True)}
    return found


def _memory(
    stored: StoredMemory, shown_bytes: int, head: int, log_tokens: int, known: Knowledge
) -> MemoryFacts:
    spec = stored.spec
    levels = spec.as_tree() if isinstance(spec, Navigable) else None
    model = (levels.navigation_model if levels else "") or spec.model or known.kit.config.model
    return MemoryFacts(
        memory_id=stored.memory_id,
        name=stored.name,
        spec=type(spec),
        applied_position=head if spec.has_whole_log else stored.applied_position,
        revision=stored.revision,
        stopped=_stopped(stored),
        sealed=stored.status == "sealed",
        shown_tokens=-(-shown_bytes // TOKEN_BYTES),
        leaf_tokens=levels.segment_tokens if levels else 0,
        levels=_levels(log_tokens, levels) if levels else 0,
        window_tokens=known.kit.facts(model).window_tokens,
        prices=known.prices(model) if known.prices else None,
    )


def _stopped(stored: StoredMemory) -> str:
    if stored.stall is not None:
        return f"is stalled at position {stored.stall.position}"
    if stored.status == "stalled":
        return "is stalled"
    return "" if stored.held_reason is None else "is held by a budget"


def _levels(log_tokens: int, spec: TreeSpec) -> int:
    """Returns the levels above the leaves of a tree over so much text; 1 or more."""
    leaves, levels = -(-log_tokens // spec.segment_tokens), 1
    while leaves > spec.max_children:
        leaves, levels = -(-leaves // spec.max_children), levels + 1
    return levels
