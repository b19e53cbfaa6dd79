"""Usage, costs and budgets, to and from the proto's messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal

from palimpsest._convert import value_of
from palimpsest._values_common import PositionRange
from palimpsest.v1 import billing_service_pb2 as pb
from palimpsest.v1 import common_pb2

#: When what was spent of a budget is reset: at midnight UTC, or never.
BudgetPeriod = Literal["day", "total"]
#: The largest limit that can be sent.
MAX_LIMIT = 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """A budget, and how much of it is left."""

    #: Empty for the tenant's.
    session: str
    #: Empty unless it is a memory's.
    memory: str
    #: "day", "total", or "unknown" where the service is newer.
    period: str
    #: Tokens of prompts and replies together, cached ones included; None: no limit.
    limit_tokens: int | None
    #: In millionths of a US dollar; None: no limit.
    limit_micro_usd: int | None
    spent_tokens: int
    spent_micro_usd: int
    #: Calls in `spent_tokens` that have no price, so are not in `spent_micro_usd`.
    unpriced_calls: int
    #: What calls in progress may cost at most.
    reserved_tokens: int
    reserved_micro_usd: int
    #: For a day's budget: when what was spent is reset.
    resets_at: datetime | None
    #: Changes with each change of the limits.
    etag: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Model calls, summed. Tokens are as providers report them."""

    #: Calls with a reply, and tries that failed.
    calls: int
    failed_calls: int
    #: Tokens of all prompts.
    input_tokens: int
    #: Those of them that the prefix cache predicted to be warm.
    predicted_cached_tokens: int
    #: Those of them that providers reported as cached.
    reported_cached_tokens: int
    #: Calls whose provider reports nothing about its cache: unknown is not 0.
    unreported_calls: int
    #: Tokens that providers report as written to their caches.
    cache_write_tokens: int
    #: Tokens of all replies.
    output_tokens: int
    #: In millionths of a US dollar, of the calls that have a price.
    cost_micro_usd: int
    #: Calls without one.
    unpriced_calls: int

    @property
    def is_reported(self) -> bool:
        """False when no provider reported what was cached of any of these calls."""
        return not self.calls or self.unreported_calls < self.calls

    @property
    def is_priced(self) -> bool:
        """False when none of these calls has a price."""
        return not self.calls or self.unpriced_calls < self.calls


#: What gets a line of its own.
Grouping = Literal["session", "memory", "day", "purpose"]


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageLine:
    """The sums of one line; what lines are not grouped by is empty."""

    #: Empty of sessions that were deleted.
    session: str
    #: Empty of calls that belong to no memory, or to a deleted one.
    memory: str
    #: In UTC; None when lines are not grouped by days.
    day: date | None
    #: "revise", "consolidate", "answer", "schema", "summarize", "navigate", "compress",
    #: "browse", "rerank" or "embed"; "unknown" where the service is newer.
    purpose: str
    #: As provider/name.
    model: str
    usage: Usage


StorageKind = Literal[
    "log", "memories", "history", "index", "ledger", "answers", "other", "unknown"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredSize:
    """How much is stored of a kind."""

    kind: StorageKind
    rows: int
    bytes: int
    #: Whether rows and bytes are estimates.
    is_estimated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageReport:
    """What model calls used, in lines."""

    #: The sum of all lines.
    total: Usage
    #: By session, memory, day, purpose, then model.
    lines: tuple[UsageLine, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheLine:
    """Calls whose prefix cache behaved alike."""

    #: "as_predicted"; "more"; "evicted", "misrouted", "drift" or "outage": less; "unknown":
    #: the provider does not report it; "": not classified.
    outcome: str
    calls: int
    predicted_cached_tokens: int
    reported_cached_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingCost:
    """What reading a log cost, as table 3 of the PRISM paper counts it."""

    #: Prompts.
    prompts: int
    #: Tokens of all prompts.
    total_tokens: int
    #: Those of them read from the cache.
    cached_tokens: int
    #: Those of them written to the cache.
    written_tokens: int
    #: Tokens of all replies.
    output_tokens: int
    #: (total - cached + 3 x output) / 1,000,000.
    cost_index: float
    #: In millionths of a US dollar; None when no price is known.
    cost_micro_usd: int | None

    @property
    def net_tokens(self) -> int:
        """Tokens that had to be read anew."""
        return self.total_tokens - self.cached_tokens

    @property
    def hit_share(self) -> float:
        """Share of the prompts' tokens that was cached; 0 to 1."""
        return self.cached_tokens / self.total_tokens if self.total_tokens else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What a memory's newest steps cost, and what they would have cost with other encodings."""

    #: Steps that are compared.
    steps: int
    #: Steps that the memory has made.
    all_steps: int
    #: Positions that the compared steps read.
    positions: PositionRange | None
    #: By whose prices.
    model: str
    #: As the ledger has these steps.
    measured: ReadingCost
    #: Simulated, as all that follow: with the folds that were made.
    as_kept: ReadingCost
    in_place: ReadingCost
    amendments: ReadingCost
    adaptive: ReadingCost
    #: Older steps are not compared.
    truncated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopCost:
    """The tokens of an agent loop over a session's steps."""

    #: Tokens of all contexts.
    context_tokens: int
    #: Tokens of the longest context.
    max_context_tokens: int
    #: Tokens of contexts and steps.
    processed_tokens: int
    #: Tokens of prompts and replies of the summaries.
    compression_tokens: int
    #: By the PCC paper's formula from mean lengths, in place of processed_tokens; 0 where
    #: the paper has none.
    formula_tokens: float

    @property
    def total_tokens(self) -> int:
        """Tokens of everything that a model reads or writes."""
        return self.processed_tokens + self.compression_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Accounting:
    """The tokens of a session's steps with a state memory, and without (PCC, section 3.3)."""

    #: T.
    steps: int
    #: L_P: of the task prompt; it and steps are counted at one for every four bytes.
    task_tokens: int
    #: L_sys: of the agent's system prompt, as it was given; in every context of all three.
    system_tokens: int
    #: L_S: of a step, in the mean.
    step_tokens: float
    #: L_M: of the vectors in a context together, in the mean, as their models count.
    state_tokens: float
    #: N: steps that were compressed at once, in the mean; 0 when none was.
    period: float
    #: The whole history in every context.
    standard: LoopCost
    #: A summary of everything, made anew after each step: simulated, without the
    #: instructions of its prompts.
    recursive: LoopCost
    #: This memory, read at every step; its compression tokens are the ledger's.
    pcc: LoopCost
    #: Tokens of the others as multiples of those of `pcc`, compressions included.
    standard_ratio: float
    recursive_ratio: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CostReport:
    """What a session or a memory cost, explained."""

    total: Usage
    #: By outcome.
    cache: tuple[CacheLine, ...]
    #: All calls that revised, consolidated, summarized or compressed. What a provider does
    #: not report of its cache is counted as predicted; `total.unreported_calls` says of how
    #: many calls.
    reading: ReadingCost
    #: For one PRISM memory and all days, once it has made a step; else None.
    comparison: Comparison | None
    #: For one state memory and all days, once its session has a chunk; else None.
    accounting: Accounting | None


def budget_limit(name: str, limit: int | None) -> int | None:
    """Returns a limit that can be sent. Raises ValueError."""
    if limit is not None and not 0 <= limit <= MAX_LIMIT:
        raise ValueError(f"{name} is from 0 to {MAX_LIMIT}, not {limit}")
    return limit


def day(given: date | None) -> str:
    """Returns a day as the proto has it."""
    return "" if given is None else given.isoformat()


def usage_report(
    total: common_pb2.Usage, lines: Sequence[pb.ListUsageResponse.Line]
) -> UsageReport:
    """Returns what was used, from all pages of a list."""
    return UsageReport(
        total=value_of(Usage, total),
        lines=tuple(
            value_of(UsageLine, one, day=date.fromisoformat(one.day) if one.day else None)
            for one in lines
        ),
    )
