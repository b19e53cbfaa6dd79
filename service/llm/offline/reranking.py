"""The offline model as a reranker: passages with the rarest words of the query come first."""

import json

from service.domain.search.reranking import RerankContent
from service.llm.offline.plain_text import weights_of
from service.llm.offline.texts import terms


def complete(content: RerankContent) -> str:
    """The reply to a reranking's ask; among equals the order stays."""
    words = [set(terms(text)) for text in content.texts]
    weights = weights_of(words)
    wanted = set(terms(content.query))
    # In one order, or the same sums might differ in their last digit.
    scores = [sum(weights[word] for word in sorted(held & wanted)) for held in words]
    order = sorted(range(len(words)), key=lambda at: (-scores[at], at))
    return json.dumps({"order": [at + 1 for at in order]})
