"""Reranks what a search found, by a model."""

from collections.abc import Callable, Sequence

from service.domain.calls.ledger import CallScope
from service.domain.search.reranking import rerank
from service.llm.gateway.driver import drive
from service.llm.gateway.gateway import Gateway
from service.llm.providers.facts import ModelFacts
from service.settings.config import Config


async def order_texts(
    gateway: Gateway,
    facts_of: Callable[[str], ModelFacts],
    marker_key: bytes,
    config: Config,
    query: str,
    texts: Sequence[str],
    *,
    scope: CallScope,
    window_tokens: int,
    model: str = "",
) -> Sequence[int]:
    """Returns the indexes of the texts, best first.

    No prompt with its reply has more than `window_tokens`, nor more than the model accepts;
    without a `model` the service's default is asked. Raises ModelFailure, NoOrder,
    BudgetExhausted.
    """
    name = model or config.model
    facts = facts_of(name)
    window = min(window_tokens, facts.window_tokens)
    flow = rerank(query, texts, marker_key=marker_key, window_tokens=window, count=facts.count)
    return await drive(flow, lambda ask: gateway.call(ask, model=name, scope=scope))
