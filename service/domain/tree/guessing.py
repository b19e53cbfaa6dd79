"""Guessing: an option for a question whose answer no text gave."""

from collections.abc import Iterable, Sequence

from service.domain.answers.options import normal


def likeliest(options: Sequence[str], texts: Iterable[str]) -> str:
    """The option of whose words the texts have the largest share; the first of several."""
    known = {word for text in texts for word in normal(text).split()}

    def share(option: str) -> float:
        words = set(normal(option).split())
        return len(words & known) / max(len(words), 1)

    return max(options, key=share)
