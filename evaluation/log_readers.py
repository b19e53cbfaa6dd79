"""Readers of the log: browsing in all its ways, reading it whole, and the automatic choice."""

from collections.abc import Mapping
from dataclasses import dataclass

import palimpsest
from evaluation.asking import Asked, ask, request_of
from evaluation.datasets import Document, Question
from evaluation.indexing import Indexes
from evaluation.memories import STATE, recent
from evaluation.sessions import Place
from evaluation.strategies import Failed, Outcome, Prepared, Spent, StrategyName
from palimpsest.v1 import answer_service_pb2

_Browse = answer_service_pb2.BrowsingOptions
#: What may be done, by the names that the command line has.
ACTIONS: Mapping[str, "answer_service_pb2.BrowsingOptions.Action.ValueType"] = {
    "task_understanding": _Browse.ACTION_TASK_UNDERSTANDING,
    "retrieve": _Browse.ACTION_RETRIEVE,
    "move": _Browse.ACTION_MOVE,
    "append": _Browse.ACTION_APPEND,
    "merge": _Browse.ACTION_MERGE,
    "answer": _Browse.ACTION_ANSWER,
    "aggregation": _Browse.ACTION_AGGREGATION,
}
_STRATEGIES: Mapping[StrategyName, "answer_service_pb2.BrowsingOptions.Strategy.ValueType"] = {
    StrategyName.DCISO: _Browse.STRATEGY_UNSPECIFIED,
    StrategyName.DCISO_RANK: _Browse.STRATEGY_RANK,
    StrategyName.DCISO_CARRY: _Browse.STRATEGY_CARRY,
    StrategyName.DCISO_INDEPENDENT: _Browse.STRATEGY_INDEPENDENT,
    StrategyName.DCISO_SCAN: _Browse.STRATEGY_SCAN,
    StrategyName.DCISO_DYNAMIC: _Browse.STRATEGY_DYNAMIC,
}
#: The settings of section 4.4; each may end in either way.
_ABLATIONS: Mapping[StrategyName, tuple[str, ...]] = {
    StrategyName.RETRIEVE_ONLY: ("retrieve",),
    StrategyName.MERGE_ONLY: ("merge",),
    StrategyName.APPEND_ONLY: ("append",),
    StrategyName.MERGE_MOVE: ("merge", "move"),
    StrategyName.APPEND_MOVE: ("append", "move"),
    StrategyName.RETRIEVE_MOVE: ("retrieve", "move"),
}
_CLOSING = ("answer", "aggregation")
_READERS: Mapping[StrategyName, "answer_service_pb2.Reader.ValueType"] = {
    StrategyName.WHOLE: answer_service_pb2.READER_WHOLE,
    StrategyName.AUTO: answer_service_pb2.READER_AUTO,
}
#: The strategies that this module has.
NAMES = frozenset({*_STRATEGIES, *_ABLATIONS, *_READERS})


@dataclass(frozen=True, kw_only=True, slots=True)
class BrowseSettings:
    """How is browsed; 0 and empty mean the service's defaults."""

    #: The limit of a prompt with its reply.
    window_tokens: int = 0
    pieces: int = 0
    max_calls: int = 0
    rerank: bool = False
    #: For `dciso` and its options: names of ACTIONS; empty means all.
    actions: tuple[str, ...] = ()
    #: As provider/name.
    model: str = ""


class LogStrategy:
    """One of the ways to read the log as it is."""

    def __init__(
        self, name: StrategyName, place: Place, settings: BrowseSettings, indexes: Indexes
    ) -> None:
        self._name = name
        self._place = place
        self._settings = settings
        self._indexes = indexes

    async def prepare(self, document: Document) -> Prepared:
        """Appends the document; readers that may search wait for the index."""
        try:
            session = await self._place.opened(document)
            is_whole = self._name is StrategyName.WHOLE
            spent = Spent() if is_whole else await self._indexes.ready(session)
            compressed = await _compressed(session)
        except palimpsest.PalimpsestError as error:
            raise Failed(f"the session was not made: {error}") from error
        return Prepared(session=session.id, spent=spent, state=recent(compressed, document))

    async def ask(self, document: Document, prepared: Prepared, question: Question) -> Outcome:
        """Returns the answer, with what of the log was read for it."""
        assert isinstance(prepared.state, frozenset), "prepare() made it"
        request = request_of(
            question,
            session=prepared.session,
            reader=_READERS.get(self._name, answer_service_pb2.READER_DCISO),
            browsing=None if self._name is StrategyName.WHOLE else self._browsing(),
            model=self._settings.model,
        )
        asked = await ask(self._place.client, request, self._place.timeout_seconds)
        return _outcome(asked, document, prepared.state)

    def _browsing(self) -> answer_service_pb2.BrowsingOptions:
        settings = self._settings
        ablation = _ABLATIONS.get(self._name)
        actions = settings.actions if ablation is None else (*ablation, *_CLOSING)
        return answer_service_pb2.BrowsingOptions(
            strategy=_STRATEGIES.get(self._name, _Browse.STRATEGY_UNSPECIFIED),
            actions=[ACTIONS[one] for one in actions],
            window_tokens=settings.window_tokens,
            pieces=settings.pieces,
            max_calls=settings.max_calls,
            rerank=settings.rerank,
        )


async def _compressed(session: palimpsest.Session) -> int:
    """Returns how far the state memory is that the automatic reader may choose; 0: none."""
    return next((one.applied_position for one in await session.memories() if one.id == STATE), 0)


def _outcome(asked: Asked, document: Document, uncompressed: frozenset[int]) -> Outcome:
    answer = asked.answer
    reader = answer.choice.reader or answer.reader
    seen: frozenset[int] | None = asked.shown
    match reader:
        case answer_service_pb2.READER_WHOLE:
            seen = frozenset(range(1, len(document.chunks) + 1))
        case answer_service_pb2.READER_PCC:
            seen = uncompressed | (asked.shown or frozenset())
        case answer_service_pb2.READER_PRISM:
            seen = None
    is_of_nodes = reader in (answer_service_pb2.READER_MEMWALKER, answer_service_pb2.READER_PCC)
    return asked.outcome(
        seen=seen,
        cited=asked.covered if is_of_nodes else asked.cited,
        pieces=asked.pieces if reader == answer_service_pb2.READER_DCISO else None,
        chosen=_chosen(answer.choice) if answer.HasField("choice") else "",
    )


def _chosen(choice: answer_service_pb2.Answer.Choice) -> str:
    """Returns what the automatic reader chose, in a word; of browsing with its option."""
    name = answer_service_pb2.Reader.Name(choice.reader).removeprefix("READER_").lower()
    if choice.reader != answer_service_pb2.READER_DCISO or not choice.strategy:
        return name
    return f"{name}-{_Browse.Strategy.Name(choice.strategy).removeprefix('STRATEGY_').lower()}"
