"""Prices of a model whose provider caches what prompts begin with, and asks for no marks."""

from service.domain.spend.prices import CacheFamily, ModelPrices

#: Reading from the cache costs a tenth, writing a quarter more; five minutes are kept.
PLAIN = ModelPrices(
    family=CacheFamily.PLAIN,
    input_usd=None,
    read=0.1,
    write=1.25,
    output=5,
    granularity_tokens=1,
    min_tokens=0,
    ttl_seconds=300,
)
