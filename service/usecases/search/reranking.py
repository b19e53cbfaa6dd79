"""Reranking: a model orders what a search found."""

from collections.abc import Callable, Sequence
from typing import Protocol

from service.domain.calls.ledger import CallScope
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.domain.search.reranking import rerank
from service.llm.gateway.driver import drive
from service.llm.providers.facts import ModelFacts
from service.settings.config import Config


class CallsModels(Protocol):
    """The gateway."""

    async def call(self, ask: ModelRequest, *, model: str, scope: CallScope) -> ModelReply:
        """The reply to a prompt."""
        ...


class Reranker:
    """Orders texts by a model, in one process."""

    def __init__(
        self,
        gateway: CallsModels,
        facts_of: Callable[[str], ModelFacts],
        marker_key: bytes,
        config: Config,
    ) -> None:
        self._gateway = gateway
        self._facts_of = facts_of
        self._marker_key = marker_key
        self._model = config.model

    async def order(
        self,
        query: str,
        texts: Sequence[str],
        *,
        scope: CallScope,
        window_tokens: int,
        model: str = "",
    ) -> Sequence[int]:
        """The indexes of the texts, best first.

        No prompt with its reply has more than `window_tokens`, nor more than the model
        takes; without a `model` the service's default is asked. Raises ModelFailure,
        NoOrder, BudgetExhausted.
        """
        name = model or self._model
        facts = self._facts_of(name)
        flow = rerank(
            query,
            texts,
            marker_key=self._marker_key,
            window_tokens=min(window_tokens, facts.window_tokens),
            count=facts.count,
        )
        return await drive(flow, lambda ask: self._gateway.call(ask, model=name, scope=scope))
