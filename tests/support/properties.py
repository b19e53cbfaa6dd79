"""How far property tests search: `make test` takes a quarter of what `make prove` takes."""

from hypothesis import settings


def examples(count: int) -> int:
    """Returns how many examples this run takes of a test that is worth `count` of them."""
    return max(count * settings().max_examples // 100, 5)
