"""Folding: when the amendments of a memory are written into a new base."""

from service.domain.prism import PrismMemory


def should_fold(memory: PrismMemory, fold_tokens: int) -> bool:
    """Whether the amendments since the base pass `fold_tokens`.

    A bound on what a prompt carries twice, and on what has to be read to load a
    memory; it depends on stored rows only, so a replay folds at the same places.
    """
    return memory.amendment_tokens > fold_tokens
