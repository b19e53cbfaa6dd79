"""Folding by price: when a memory's amendments are written into a new base.

A prompt's prefix costs the read price where the provider has it warm and the write price
where it has not. Amendments keep the prefix warm but leave dead tokens: what they
replaced, and their paths. Each later prompt pays for those, their *rent*; a fold is paid
once. Everything here is a function of stored rows and prices, so that a replay folds where
the first run did. Why the rule is as it is stands in docs/decisions/0011.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from service.domain.prism.memory import PrismMemory
from service.domain.prism.ordering import Changes, ordered
from service.domain.spend.prices import CacheFamily, ModelPrices
from service.domain.values.beginnings import common_characters

#: How much the rent counts that is being paid now, against the rent that was paid since the
#: last fold; 0 to 1. Found by trial on made-up streams; a little more or less is as good.
LATELY = 0.75
#: Share of the coming prompt's rent that counts as paid: a fold comes before the prompt.
AHEAD = 0.25
#: A fold writes the whole memory to the database. For less than this share of what the
#: memory costs in one prompt it is not made.
MIN_GAIN = 0.005


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptSizes:
    """What the next prompt shows, in tokens: the memory as it is, and folded."""

    #: In front of the memory; the same in every prompt.
    task: int
    #: The memory as it is, and how much of that the last prompt did not have yet.
    shown: int
    fresh: int
    #: The memory folded, and how much of its beginning the last prompt had as well.
    live: int
    kept: int

    @classmethod
    def of(cls, memory: PrismMemory, task_tokens: int, since_revision: int) -> "PromptSizes":
        """Returns the sizes of a memory whose last prompt showed revision `since_revision`."""
        fresh = sum(
            memory.count(batch.text)
            for batch in reversed(memory.batches)
            if batch.revision > since_revision
        )
        return cls(
            task=task_tokens,
            shown=memory.shown_tokens,
            fresh=min(fresh, memory.shown_tokens),
            live=memory.live_tokens,
            kept=kept_tokens(memory.base_json, memory.value_json, memory.live_tokens),
        )


def kept_tokens(old: str, new: str, new_tokens: int) -> int:
    """Estimates how many of the tokens of `new` are those that `old` begins with."""
    return share(common_characters(old, new), new, new_tokens)


def share(characters: int, text: str, tokens: int) -> int:
    """Estimates how many of a text's tokens its first characters have."""
    return tokens * characters // len(text) if text else 0


@dataclass(frozen=True, slots=True)
class PrefixTokens:
    """The tokens of a prompt's prefix, by what is paid for them."""

    #: At the read price, the write price, and the full price of an input token.
    cached: int = 0
    written: int = 0
    fresh: int = 0

    def cost(self, prices: ModelPrices) -> float:
        """Returns what they cost, in full input tokens."""
        return self.cached * prices.read + self.written * prices.write + self.fresh


def prefix(tokens: int, warm_tokens: int, prices: ModelPrices) -> PrefixTokens:
    """Returns what a prefix costs of which the provider has seen the first `warm_tokens`."""
    if tokens < prices.min_tokens:
        return PrefixTokens(fresh=tokens)
    warm = warm_tokens if warm_tokens >= prices.min_tokens else 0
    warm -= warm % prices.granularity_tokens
    return PrefixTokens(cached=warm, written=tokens - warm)


def keeping(sizes: PromptSizes, prices: ModelPrices, *, cold: bool = False) -> PrefixTokens:
    """Returns the next prompt's prefix when the memory stays as it is."""
    total = sizes.task + sizes.shown
    return prefix(total, 0 if cold else total - sizes.fresh, prices)


def folded(sizes: PromptSizes, prices: ModelPrices, *, cold: bool = False) -> PrefixTokens:
    """Returns the next prompt's prefix when the memory is folded first."""
    if cold:
        return prefix(sizes.task + sizes.live, 0, prices)
    kept = sizes.kept
    if prices.family is CacheFamily.EXPLICIT and kept < sizes.live:
        # Only what ends at a mark is warm, and no mark stands within the old base.
        kept = 0
    return prefix(sizes.task + sizes.live, sizes.task + kept, prices)


def fold_price(sizes: PromptSizes, prices: ModelPrices, *, cold: bool = False) -> float:
    """Returns what the next prompt costs more if the memory is folded first."""
    kept = keeping(sizes, prices, cold=cold)
    return folded(sizes, prices, cold=cold).cost(prices) - kept.cost(prices)


def rent(sizes: PromptSizes, prices: ModelPrices) -> float:
    """Returns what a warm prompt costs more for the dead tokens that it shows."""
    shown, live = sizes.task + sizes.shown, sizes.task + sizes.live
    return prefix(shown, shown, prices).cost(prices) - prefix(live, live, prices).cost(prices)


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldState:
    """What the policy has counted; it is stored with the revision that it was counted at."""

    #: The memory's revision; another one there makes all of this void.
    revision: int
    #: The revision that the last prompt showed.
    prompted: int
    #: Rent since the last fold, in full input tokens.
    rent: float = 0.0
    #: Prompts since the last fold.
    prompts: int = 0
    #: What former folds found changed.
    changes: Changes = field(default_factory=Changes)

    @classmethod
    def anew(cls, revision: int) -> "FoldState":
        """Returns the state of a memory of which nothing is known.

        Its last amendments are taken for new, all others for shown.
        """
        return cls(revision=revision, prompted=max(revision - 1, 0))

    @classmethod
    def from_json(cls, stored: Any, revision: int) -> "FoldState":
        """Returns the stored state, or a new one if it is missing or of another revision.

        A change by hand, or a worker of another release, came in between then.
        """
        if not isinstance(stored, Mapping) or stored.get("revision") != revision:
            return cls.anew(revision)
        try:
            return cls(
                revision=revision,
                prompted=int(stored["prompted"]),
                rent=float(stored["rent"]),
                prompts=int(stored["prompts"]),
                changes=Changes.from_json(stored["changes"]),
            )
        except (KeyError, TypeError, ValueError):
            # Stored by a release that counts otherwise.
            return cls.anew(revision)

    def to_json(self) -> dict[str, Any]:
        """Returns the state as plain JSON, for `from_json`."""
        return {
            "revision": self.revision,
            "prompted": self.prompted,
            "rent": self.rent,
            "prompts": self.prompts,
            "changes": self.changes.to_json(),
        }

    def stepped(self, sizes: PromptSizes, prices: ModelPrices) -> "FoldState":
        """Returns the state after the next revision, before which a prompt showed this one."""
        return replace(
            self,
            revision=self.revision + 1,
            prompted=self.revision,
            rent=self.rent + max(rent(sizes, prices), 0.0),
            prompts=self.prompts + 1,
        )

    def skipped(self) -> "FoldState":
        """Returns the state after a revision that changed nothing and showed nothing."""
        return replace(self, revision=self.revision + 1)

    def folded(self, changes: Changes) -> "FoldState":
        """Returns the state after a fold."""
        return replace(self, revision=self.revision + 1, rent=0.0, prompts=0, changes=changes)


def is_due(
    sizes: PromptSizes, state: FoldState, prices: ModelPrices, *, cold: bool = False
) -> bool:
    """Returns whether the memory is folded before its next prompt.

    Two estimates of what a fold is worth are mixed. What was paid since the last fold,
    as with skis that are rented until they have cost their price. And what each prompt
    pays now, over as many prompts as there were, less what was paid: while that is less
    than the fold costs, waiting makes the average prompt cheaper. For a stream that goes on
    as it did both are the same; the second one sees a burst sooner.
    """
    price = fold_price(sizes, prices, cold=cold)
    now = rent(sizes, prices)
    prompts = state.prompts + 1
    if now < 0 or price - now * prompts >= -MIN_GAIN * prices.read * sizes.live:
        # It would not win its price back in as many prompts as there were.
        return False
    if price <= 0:
        return True
    lately = now * prompts - state.rent
    return LATELY * lately + (1 - LATELY) * state.rent + AHEAD * now >= price


def fold(
    memory: PrismMemory, state: FoldState, prices: ModelPrices, *, cold: bool = False
) -> tuple[PrismMemory, FoldState]:
    """Returns the memory folded, with its keys in the order that is best to keep, and the state."""
    changes = state.changes.since(memory.base_value, memory.value)
    value = memory.value
    # With marks no base is found again in part, however its keys are ordered.
    if prices.family is not CacheFamily.EXPLICIT and prices.write > prices.read:
        value = ordered(memory.base_json, value, changes, is_cold=cold)
    return memory.fold(value), state.folded(changes)
