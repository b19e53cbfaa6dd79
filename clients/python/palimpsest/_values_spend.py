"""Usage, costs and budgets: plain values."""

from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal

#: When what was spent is forgotten: at midnight UTC, or never.
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
    #: What calls under way may come to.
    reserved_tokens: int
    reserved_micro_usd: int
    #: Of a day's budget: when what was spent is forgotten next.
    resets_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetSet:
    """What came of setting a budget."""

    budget: Budget
    #: Held memories that try again.
    woken_memories: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Model calls, summed."""

    calls: int
    input_tokens: int
    #: Of these, those that the prefix cache predicted to be warm.
    predicted_cached_tokens: int
    #: None when no call reported any: unknown is not 0.
    reported_cached_tokens: int | None
    output_tokens: int
    #: In millionths of a US dollar; None when no price is known.
    cost_micro_usd: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageLine:
    """Calls of one purpose and model."""

    purpose: str
    model: str
    usage: Usage


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageReport:
    """What a session's or a memory's model calls came to."""

    total: Usage
    lines: tuple[UsageLine, ...]


#: What gets a line of its own: nothing, each session, or each memory.
SpendLevel = Literal["tenant", "session", "memory"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spend:
    """Model calls, summed. Tokens are as providers report them."""

    #: Calls with a reply, and tries that failed.
    calls: int
    failed_calls: int
    #: Tokens of all prompts.
    input_tokens: int
    #: Of these, those that the prefix cache predicted to be warm.
    predicted_cached_tokens: int
    #: Of these, those that providers reported as cached.
    reported_cached_tokens: int
    #: Calls whose provider says nothing of its cache.
    unreported_calls: int
    cache_write_tokens: int
    #: Tokens of all replies.
    output_tokens: int
    #: In millionths of a US dollar, of the calls that have a price.
    cost_micro_usd: int
    #: Calls without one.
    unpriced_calls: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SpendLine:
    """The sums of one line; what it is not split by is empty."""

    session: str
    memory: str
    #: In UTC; None when days are summed.
    day: date | None
    spend: Spend


@dataclass(frozen=True, kw_only=True, slots=True)
class SpendReport:
    """What was spent."""

    total: Spend
    lines: tuple[SpendLine, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CostLine:
    """Calls of one memory, purpose and model."""

    #: Empty for calls that no memory made.
    memory: str
    purpose: str
    #: As provider/name.
    model: str
    spend: Spend


@dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """Calls whose prefix cache behaved alike."""

    #: "none": as predicted; "more"; "evicted", "misrouted", "drift" or "outage": less;
    #: "unknown": the provider does not say; "": not classified.
    residual: str
    calls: int
    predicted_cached_tokens: int
    reported_cached_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LogCost:
    """What reading a log cost, as table 3 of the PRISM paper counts it."""

    #: Prompts.
    prompts: int
    #: Tokens of all prompts.
    total_tokens: int
    #: Of these, those read from the cache.
    cached_tokens: int
    #: Of these, those written to it.
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
    """What a memory's newest steps came to, and what they would have come to."""

    #: Steps that are compared.
    steps: int
    #: Steps that the memory has made.
    all_steps: int
    #: The compared steps read the positions from_position + 1 to to_position.
    from_position: int
    to_position: int
    #: By whose prices.
    model: str
    #: As the ledger has these steps.
    measured: LogCost
    #: Simulated, as all that follow: with the folds that were made.
    as_kept: LogCost
    in_place: LogCost
    amendments: LogCost
    adaptive: LogCost
    #: Older steps are not compared.
    truncated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopCost:
    """What an agent loop over a session's steps comes to."""

    #: Tokens of all contexts.
    context_tokens: int
    #: Of the longest context.
    max_context_tokens: int
    #: Of contexts and steps.
    processed_tokens: int
    #: Of prompts and replies of the summaries.
    compression_tokens: int
    #: By the PCC paper's formula from mean lengths, in place of processed_tokens; 0 where
    #: the paper has none.
    formula_tokens: float

    @property
    def total_tokens(self) -> int:
        """Of everything that a model reads or writes."""
        return self.processed_tokens + self.compression_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Accounting:
    """What a session's steps come to with a state memory, and without (PCC, section 3.3)."""

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
    #: How many times the tokens of `pcc` the others come to, compressions included.
    standard_ratio: float
    recursive_ratio: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a session or a memory came to."""

    total: Spend
    lines: tuple[CostLine, ...]
    residuals: tuple[Residual, ...]
    #: All calls that revised, consolidated, summarized or compressed. What a provider does
    #: not report of its cache is taken as predicted; `total.unreported_calls` says of how
    #: many calls.
    reading: LogCost
    #: Of one PRISM memory, for all days, when it has made a step; else None.
    comparison: Comparison | None
    #: Of one state memory, for all days, when its session has a step; else None.
    accounting: Accounting | None
