"""Remembers the prompts that this process sent last, to compare new ones by character.

The index knows only the ends of segments. Providers that cache prefixes by themselves also find the
common part of a segment that changed: a memory written in place, or a base folded anew.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.values.beginnings import common_characters

#: Prompts that are remembered, and their characters; the oldest is forgotten.
MAX_PROMPTS = 256
MAX_CHARACTERS = 32_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class RecentPrompt:
    """The reusable part of a prompt that was sent."""

    #: Its segments.
    texts: tuple[str, ...]
    #: Tokens up to the end of each, as the provider counts.
    tokens: tuple[int, ...]
    #: Unix seconds.
    sent_at: float

    def common_tokens(self, texts: Sequence[str]) -> int:
        """Returns about how many tokens this prompt shares with one that has these segments."""
        before = 0
        for old, new, end in zip(self.texts, texts, self.tokens, strict=False):
            if old != new:
                alike = common_characters(old, new)
                return before + (end - before) * alike // max(len(old), 1)
            before = end
        return before


class RecentPrompts:
    """Keeps the last prompt of each memory, task and deployment."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[str, ...], RecentPrompt] = OrderedDict()
        self._characters = 0

    def find(self, key: tuple[str, ...], not_before: float) -> RecentPrompt | None:
        """Returns the last prompt, if it was sent since then."""
        held = self._held.get(key)
        return held if held is not None and held.sent_at >= not_before else None

    def keep(self, key: tuple[str, ...], sent: RecentPrompt) -> None:
        """Remembers a prompt in place of the previous one."""
        self._drop(key)
        self._held[key] = sent
        self._characters += _size(sent)
        while len(self._held) > MAX_PROMPTS or self._characters > MAX_CHARACTERS:
            self._drop(next(iter(self._held)))

    def _drop(self, key: tuple[str, ...]) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._characters -= _size(held)


def _size(one: RecentPrompt) -> int:
    return sum(len(text) for text in one.texts)
