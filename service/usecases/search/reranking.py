"""Reranks what a search found, by a model."""

from collections.abc import Callable, Sequence

from service.domain.calls.ledger import CallScope
from service.domain.search.reranking import rerank
from service.llm.gateway.driver import drive
from service.llm.gateway.gateway import Gateway
from service.llm.providers.facts import ModelFacts
from service.settings.config import Config


class Reranker:
    """Orders texts by a model, in one process."""

    def __init__(
        self,
        gateway: Gateway,
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
        """Returns the indexes of the texts, best first.

        No prompt with its reply has more than `window_tokens`, nor more than the model
        accepts; without a `model` the service's default is asked. Raises ModelFailure,
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
