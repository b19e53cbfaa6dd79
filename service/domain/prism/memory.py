"""A PRISM memory at one revision, and how prompts show it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from service.domain.prism import prompts
from service.domain.prism.amending import MISSING, amend, replay, value_at
from service.domain.prism.amendments import Amendment
from service.domain.prism.schemas.tree import Schema
from service.domain.prism.spec import Encoding
from service.domain.prompting.flows import Segment, SegmentKind
from service.domain.prompting.tokens import estimate_tokens
from service.domain.values.json_values import Json, canonical, restore
from service.domain.values.paths import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The amendments of one revision, as prompts show them."""

    revision: int
    #: One line an amendment.
    text: str
    #: The places that they changed, in their order.
    paths: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PrismMemory:
    """A memory at one revision. Its rendering is a pure function of stored rows."""

    schema: Schema
    encoding: Encoding
    #: Canonical JSON that the last fold (or the creation) wrote; empty in place.
    base_json: str
    #: What was amended since, oldest first; none in place.
    batches: tuple[Batch, ...]
    #: Tokens of the base, and of all batches.
    base_tokens: int
    amendment_tokens: int
    #: The state, with everything applied.
    value: Json
    #: Tokens of a text.
    count: Callable[[str], int] = estimate_tokens

    @classmethod
    def create(
        cls,
        schema: Schema,
        encoding: Encoding = Encoding.AMENDMENTS,
        count: Callable[[str], int] = estimate_tokens,
    ) -> "PrismMemory":
        """Returns an empty memory, at revision 0 (algorithm 1, line 1)."""
        return cls.load(schema, base_json="{}", amendments=(), encoding=encoding, count=count)

    @classmethod
    def load(
        cls,
        schema: Schema,
        *,
        base_json: str,
        amendments: Iterable[tuple[int, Sequence[Amendment]]],
        encoding: Encoding = Encoding.AMENDMENTS,
        count: Callable[[str], int] = estimate_tokens,
    ) -> "PrismMemory":
        """Loads a memory from its stored rows: a base, and amendments by revision.

        In place, any earlier state will do as the base.
        """
        in_place = encoding is Encoding.IN_PLACE
        value = restore(base_json)
        batches: list[Batch] = []
        for revision, amended in amendments:
            value = replay(schema, value, amended)
            if amended and not in_place:
                batches.append(_batch(revision, amended))
        return cls(
            schema=schema,
            encoding=encoding,
            base_json="" if in_place else base_json,
            batches=tuple(batches),
            base_tokens=0 if in_place else count(base_json),
            amendment_tokens=sum(count(batch.text) for batch in batches),
            value=value,
            count=count,
        )

    def apply(self, revision: int, amendments: Sequence[Amendment]) -> "PrismMemory":
        """Returns the memory after `revision` (algorithm 1, line 4); a revision may be empty."""
        if not amendments:
            return self
        value = amend(self.schema, self.value, amendments)
        if self.encoding is Encoding.IN_PLACE:
            return replace(self, value=value)
        batch = _batch(revision, amendments)
        return replace(
            self,
            batches=(*self.batches, batch),
            amendment_tokens=self.amendment_tokens + self.count(batch.text),
            value=value,
        )

    def fold(self, value: Json | None = None) -> "PrismMemory":
        """Returns the same state with everything written into a new base.

        `value`: the state, with its keys in another order.
        """
        if self.encoding is Encoding.IN_PLACE:
            return self
        moved = self if value is None else replace(self, value=value)
        return replace(
            moved,
            base_json=moved.value_json,
            batches=(),
            base_tokens=moved.live_tokens,
            amendment_tokens=0,
        )

    @property
    def base_value(self) -> Json:
        """The state that the base has; not for memories in place."""
        return restore(self.base_json)

    @cached_property
    def value_json(self) -> str:
        """The state as canonical JSON."""
        return canonical(self.value)

    @cached_property
    def live_bytes(self) -> int:
        """Bytes of the state, as its limit counts them."""
        return len(self.value_json.encode())

    @cached_property
    def live_tokens(self) -> int:
        """Tokens of the state, each value once."""
        return self.count(self.value_json)

    @property
    def shown_tokens(self) -> int:
        """Tokens of the memory as prompts show it."""
        if self.encoding is Encoding.IN_PLACE:
            return self.live_tokens
        return self.base_tokens + self.amendment_tokens

    def value_at(self, path: Path) -> Json:
        """Returns what is at `path`; null when there is nothing."""
        held = value_at(self.value, path)
        return None if held is MISSING else held  # type: ignore[return-value]

    def segments(self) -> tuple[Segment, ...]:
        """Returns the memory as a prompt shows it: the base, then each revision's amendments."""
        in_place = self.encoding is Encoding.IN_PLACE
        shown = prompts.base_segment(self.value_json if in_place else self.base_json)
        return (
            Segment(kind=SegmentKind.BASE, text=shown, lasting=not in_place),
            *(Segment(kind=SegmentKind.AMENDMENTS, text=batch.text) for batch in self.batches),
        )


def _batch(revision: int, amendments: Sequence[Amendment]) -> Batch:
    text = "".join(prompts.amendment_line(one) for one in amendments)
    return Batch(revision=revision, text=text, paths=tuple(one.path for one in amendments))
