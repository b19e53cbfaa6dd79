"""What model calls cost: sums by session, memory and day, and how a memory's log was read."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date
from typing import Literal

from palimpsest.connection import Connection
from palimpsest.v1 import usage_pb2, usage_pb2_grpc

#: What gets a line of its own: nothing, each session, or each memory.
Level = Literal["tenant", "session", "memory"]

_LEVELS: dict[str, usage_pb2.SpendLevel.ValueType] = {
    "tenant": usage_pb2.SPEND_LEVEL_TENANT,
    "session": usage_pb2.SPEND_LEVEL_SESSION,
    "memory": usage_pb2.SPEND_LEVEL_MEMORY,
}


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
    #: In UTC; None when days are not told apart.
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
    #: The cheapest for whoever knows the whole log.
    optimum: LogCost
    #: Older steps are not compared.
    truncated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
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
    standard: Loop
    #: A summary of everything, made anew after each step: simulated, without the
    #: instructions of its prompts.
    recursive: Loop
    #: This memory, read at every step; its compression tokens are the ledger's.
    pcc: Loop
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


async def read_spend(
    connection: Connection,
    *,
    session: str = "",
    memory: str = "",
    from_day: date | None = None,
    to_day: date | None = None,
    level: Level = "memory",
    by_day: bool = False,
) -> SpendReport:
    """See `palimpsest.client.Client.spend`."""
    stub = usage_pb2_grpc.UsageServiceStub(connection.channel)
    if level not in _LEVELS:
        raise ValueError(f"level is one of {', '.join(_LEVELS)}, not {level!r}")
    request = usage_pb2.ListSpendRequest(
        session=session,
        memory=memory,
        from_day=_day(from_day),
        to_day=_day(to_day),
        level=_LEVELS[level],
        by_day=by_day,
        page_size=1000,
    )
    lines: list[SpendLine] = []
    total = usage_pb2.Spend()
    pages: AsyncIterator[usage_pb2.ListSpendResponse] = connection.pages(stub.ListSpend, request)
    async for page in pages:
        total = page.total
        lines += [_spend_line(one) for one in page.lines]
    return SpendReport(total=_spend(total), lines=tuple(lines))


async def read_cost(
    connection: Connection,
    session: str,
    memory: str = "",
    *,
    from_day: date | None = None,
    to_day: date | None = None,
    system_tokens: int = 0,
) -> Cost:
    """See `palimpsest.client.Session.cost`."""
    stub = usage_pb2_grpc.UsageServiceStub(connection.channel)
    request = usage_pb2.GetCostRequest(
        session=session,
        memory=memory,
        from_day=_day(from_day),
        to_day=_day(to_day),
        system_tokens=system_tokens,
    )
    found = await connection.call(stub.GetCost, request)
    return Cost(
        total=_spend(found.total),
        lines=tuple(
            CostLine(
                memory=one.memory, purpose=one.purpose, model=one.model, spend=_spend(one.spend)
            )
            for one in found.lines
        ),
        residuals=tuple(
            Residual(
                residual=getattr(one, "class"),
                calls=one.calls,
                predicted_cached_tokens=one.predicted_cached_tokens,
                reported_cached_tokens=one.reported_cached_tokens,
            )
            for one in found.residuals
        ),
        reading=_log_cost(found.reading),
        comparison=_comparison(found.comparison) if found.HasField("comparison") else None,
        accounting=_accounting(found.accounting) if found.HasField("accounting") else None,
    )


def _day(day: date | None) -> str:
    return "" if day is None else day.isoformat()


def _spend(message: usage_pb2.Spend) -> Spend:
    return Spend(**{name: getattr(message, name) for name in Spend.__dataclass_fields__})


def _spend_line(message: usage_pb2.ListSpendResponse.Line) -> SpendLine:
    return SpendLine(
        session=message.session,
        memory=message.memory,
        day=date.fromisoformat(message.day) if message.day else None,
        spend=_spend(message.spend),
    )


def _log_cost(message: usage_pb2.LogCost) -> LogCost:
    return LogCost(
        prompts=message.prompts,
        total_tokens=message.total_tokens,
        cached_tokens=message.cached_tokens,
        written_tokens=message.written_tokens,
        output_tokens=message.output_tokens,
        cost_index=message.cost_index,
        cost_micro_usd=message.cost_micro_usd if message.HasField("cost_micro_usd") else None,
    )


def _comparison(message: usage_pb2.GetCostResponse.Comparison) -> Comparison:
    return Comparison(
        steps=message.steps,
        all_steps=message.all_steps,
        from_position=message.from_position,
        to_position=message.to_position,
        model=message.model,
        measured=_log_cost(message.measured),
        as_kept=_log_cost(message.as_kept),
        in_place=_log_cost(message.in_place),
        amendments=_log_cost(message.amendments),
        adaptive=_log_cost(message.adaptive),
        optimum=_log_cost(message.optimum),
        truncated=message.truncated,
    )


def _accounting(message: usage_pb2.GetCostResponse.Accounting) -> Accounting:
    return Accounting(
        steps=message.steps,
        task_tokens=message.task_tokens,
        system_tokens=message.system_tokens,
        step_tokens=message.step_tokens,
        state_tokens=message.state_tokens,
        period=message.period,
        standard=_loop(message.standard),
        recursive=_loop(message.recursive),
        pcc=_loop(message.pcc),
        standard_ratio=message.standard_ratio,
        recursive_ratio=message.recursive_ratio,
    )


def _loop(message: usage_pb2.GetCostResponse.Loop) -> Loop:
    return Loop(**{name: getattr(message, name) for name in Loop.__dataclass_fields__})
