"""Answers a question from the levels of a memory, move by move."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from uuid import UUID

from service.domain.answers.citations import best_excerpt, best_position
from service.domain.answers.trajectory import Action, Event, EventKind, NoAnswer
from service.domain.prompting.flows import FetchingFlow
from service.domain.state.spec import StateSpec
from service.domain.tree.navigation import TreeQuestion, navigate
from service.domain.tree.nodes import NodeView
from service.domain.tree.recording import Navigation, Statistics
from service.domain.tree.spec import Navigable, TreeSpec
from service.domain.values.memory_specs import MemorySpec
from service.domain.values.work_items import WorkItem
from service.llm.gateway.driver import drive
from service.llm.providers.facts import ModelFacts
from service.usecases.answers.readers.answering import (
    EXCERPT_CHARACTERS,
    MadeAnswer,
    ReaderKit,
    ReadingKit,
    ReadingReplies,
)
from service.usecases.answers.readers.levels import LevelsReader
from service.usecases.answers.readers.spans import spanned
from service.usecases.answers.readers.state_reading import StateReader
from service.usecases.answers.readers.tree_reading import TreeReader
from storage.answers.answers import StoredAnswer, StoredCitation

#: Why there is no answer.
NO_ANSWER_TEXTS = {
    NoAnswer.UNREADABLE: "There is no answer: three replies of the model in a row made no sense.",
    NoAnswer.NOT_FOUND: "There is no answer in the text.",
    NoAnswer.STEP_LIMIT: "There is no answer yet: the model calls that it might cost are used up.",
    NoAnswer.EMPTY: "There is no answer: the {kind} has no text yet.",
}
#: The same after as many calls as the depth of the levels allows.
BOUNDED_TEXT = "There is no answer where the summaries led: {read} of the text had none."

#: What reads the levels of memories, by their kind.
LEVELS: Mapping[str, type[TreeReader] | type[StateReader]] = {
    TreeSpec.kind: TreeReader,
    StateSpec.kind: StateReader,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What decides how a navigation's prompts look besides the memory's levels."""

    #: A tree's own; of a state memory as navigations read it.
    spec: TreeSpec
    #: The model that navigates.
    model: str
    #: The model that navigates, and the one that builds.
    facts: ModelFacts
    building_facts: ModelFacts
    marker_key: bytes

    @classmethod
    def of(cls, kept: MemorySpec, kit: ReadingKit) -> "Terms":
        """Returns the terms of a memory that has levels."""
        assert isinstance(kept, Navigable), "other kinds are refused"
        spec = kept.as_tree()
        building = spec.model or kit.config.model
        model = spec.navigation_model or building
        return cls(
            spec=spec,
            model=model,
            facts=kit.facts(model),
            building_facts=kit.facts(building),
            marker_key=kit.marker_key,
        )

    async def reader(
        self, kit: ReadingKit, tenant_id: UUID, asked: StoredAnswer
    ) -> LevelsReader | None:
        """Opens the levels that a question is asked of; returns None when there is no text."""
        return await LEVELS[asked.spec.kind].open(
            kit.database,
            tenant_id,
            asked,
            spec=self.spec,
            count=self.building_facts.count,
            tail_bytes=kit.config.limits.max_tail_bytes,
        )

    def flow(self, asked: StoredAnswer, root: NodeView) -> FetchingFlow[Navigation]:
        """Returns the navigation of a question, which is the same whenever it is made."""
        assert asked.navigation is not None, "only such questions are navigated"
        how = asdict(asked.navigation)
        return navigate(
            TreeQuestion(
                **how | {"query": asked.query, "options": asked.options or how["options"]}
            ),
            root,
            spec=self.spec,
            text_tokens=root.text_tokens,
            **self.facts.terms(self.marker_key),
        )


class Navigator:
    """Navigates trees and state memories in one worker process."""

    def __init__(self, kit: ReaderKit) -> None:
        self._kit = kit

    async def answer(self, item: WorkItem, asked: StoredAnswer) -> MadeAnswer:
        """Finds the answer to a question, and what it rests on. Raises ModelFailure, TextTooLong.

        Each event is stored before the next move. Made again after a failure, it stores the same
        events up to where it stopped.
        """
        terms = Terms.of(asked.spec, self._kit)
        reader = await terms.reader(self._kit, item.tenant_id, asked)
        if reader is None:
            return _made(await self._empty(item, asked), (), asked, terms.model)
        replies = ReadingReplies(self._kit.calls, item, asked, reader.fetch, terms.model)
        navigation = await drive(terms.flow(asked, reader.root), replies.to)
        leaves = navigation.leaves if navigation.no_answer is None else ()
        citations = [await _cite(reader, leaf, navigation) for leaf in leaves]
        made = _made(navigation, citations, asked, terms.model)
        return replace(made, left_out=reader.left_out)

    async def _empty(self, item: WorkItem, asked: StoredAnswer) -> Navigation:
        why = NoAnswer.EMPTY
        event = Event(ordinal=1, kind=EventKind.END, action=Action.NONE, text=why)
        await self._kit.calls.tell(item, asked, event)
        return Navigation(text="", no_answer=why, leaves=(), reasoning="", statistics=Statistics())


def _made(
    navigation: Navigation, citations: Sequence[StoredCitation], asked: StoredAnswer, model: str
) -> MadeAnswer:
    return MadeAnswer(
        text=navigation.text,
        citations=citations,
        model=model,
        no_answer=navigation.no_answer,
        failure=_failure(navigation, LEVELS[asked.spec.kind].noun),
        statistics=navigation.statistics,
        guessed=navigation.guessed,
    )


def _failure(navigation: Navigation, kind: str) -> str:
    """Says why there is no answer; empty where there is one."""
    if navigation.no_answer is None:
        return ""
    if navigation.bounded:
        read = navigation.statistics.leaves_read
        return BOUNDED_TEXT.format(read=f"{read} leaf" if read == 1 else f"{read} leaves")
    return NO_ANSWER_TEXTS[navigation.no_answer].format(kind=kind)


async def _cite(reader: LevelsReader, leaf: str, navigation: Navigation) -> StoredCitation:
    """Cites the chunk of a leaf whose words fit the answer best, and the sentence that does."""
    held = await reader.hold(leaf)
    said, why = navigation.text, navigation.reasoning
    pieces = {piece.position: piece for piece in held.pieces}
    texts = [(piece.position, piece.text) for piece in pieces.values()]
    piece = pieces[best_position(said, texts, around=why)]
    citation = StoredCitation(
        position=piece.position,
        revision=held.revision,
        excerpt=best_excerpt(said, piece.text, EXCERPT_CHARACTERS, around=why),
        node_id=leaf,
        from_position=held.view.start.position,
        to_position=held.view.end.last_position,
    )
    return spanned(citation, piece.text, piece.offset)
