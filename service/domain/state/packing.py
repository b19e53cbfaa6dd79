"""Packs the texts to compress into parts that fit into the model's window.

Nothing is left out and nothing comes twice: the texts of the parts, one after the other,
are the texts.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from service.domain.access.trust import Trust
from service.domain.prompting.cutting import LOOK_AHEAD, Cutter
from service.domain.prompting.fitting import prompt_tokens
from service.domain.prompting.flows import Segment, SegmentKind
from service.domain.prompting.tokens import TOKEN_BYTES
from service.domain.state.prompts import shown_text

#: A piece of a text that does not fit has room for so many tokens at least.
MIN_PIECE_TOKENS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A step or a vector, or what is left of it."""

    label: str
    text: str
    #: Whether its beginning is in the part before.
    continued: bool = False
    trust: Trust = Trust.TRUSTED

    def shown(self, key: bytes) -> str:
        """Returns it as a prompt shows it."""
        label = f"{self.label}, continued" if self.continued else self.label
        return shown_text(label, self.text, key, self.trust)


class Packer:
    """Takes parts from the front."""

    def __init__(self, items: Sequence[Item], *, cut: Cutter, count: Callable[[str], int]) -> None:
        self._left = deque(items)
        self._cut = cut
        self._count = count

    def __bool__(self) -> bool:
        """Returns whether something is left."""
        return bool(self._left)

    @property
    def levels(self) -> Iterable[Trust]:
        """How much the items are trusted that are left."""
        return (item.trust for item in self._left)

    @property
    def next_label(self) -> str:
        """What the next item is called."""
        return self._left[0].label

    def take(self, room: int) -> Sequence[Item]:
        """Returns the next part: items that a prompt shows in at most `room` tokens.

        An item is kept whole where it fits. Empty when there is no room for anything.
        """
        taken: list[Item] = []
        while self._left:
            size = self._size(self._left[0])
            if size > room:
                break
            taken.append(self._left.popleft())
            room -= size
        return taken or self._begin(room)

    def _size(self, item: Item) -> int:
        return self._overhead(item) + self._count(item.text)

    def _overhead(self, item: Item) -> int:
        """Tokens of its label and its marks."""
        # The key is none that is used: all marks are of one size.
        lines = replace(item, text="").shown(b"size")
        return prompt_tokens([Segment(kind=SegmentKind.CHUNK, text=lines)], self._count)

    def _begin(self, room: int) -> Sequence[Item]:
        """Takes a piece of an item that is larger than a part; none where that is too small."""
        item = self._left[0]
        free = room - self._overhead(item)
        end = self._end(item.text, free) if free >= MIN_PIECE_TOKENS else 0
        if not end:
            return []
        self._left[0] = replace(item, text=item.text[end:], continued=True)
        return [replace(item, text=item.text[:end])]

    def _end(self, text: str, free: int) -> int:
        """Characters of a piece that has at most `free` tokens by the model's count; 0: none."""
        tokens = free
        while tokens > 0:
            # A cutter looks at all that it is given, and a text may be long.
            end = self._cut(text[: int(tokens * TOKEN_BYTES * (1 + LOOK_AHEAD))], tokens)
            if end < 1:
                raise ValueError("a cutter that cuts nothing off")
            size = self._count(text[:end])
            if size <= free:
                return end
            tokens = min(tokens - 1, tokens * free // size)
        return 0
