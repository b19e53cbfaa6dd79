"""`palimpsest cost` and `usage`: what model calls cost, and what they would have cost."""

from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any

import typer

from palimpsest import (
    Accounting,
    Client,
    Comparison,
    CostReport,
    Grouping,
    LoopCost,
    ReadingCost,
    StoredSize,
    Usage,
    UsageReport,
)
from service.cli.command import DEFAULT_NAME, Json, MaybeSession, OnlyMemory, add_commands
from service.cli.output import (
    MICRO,
    CommandError,
    plain_json,
    show,
    show_json,
    show_rows,
)

_DAY_HELP = "A day in UTC, YYYY-MM-DD."
#: The lines of a comparison: name in JSON, and for people.
_SIMULATED = {
    "as_kept": "as it was folded",
    "in_place": "in_place",
    "amendments": "amendments, never folded",
    "adaptive": "adaptive",
}
#: The lines of an accounting: name in JSON, and for people.
_LOOPS = {
    "standard": "standard loop",
    "recursive": "full recursive summarization (simulated)",
    "pcc": "this memory",
}
#: Purposes of the calls that read a log.
_READING = ("revise", "consolidate", "summarize", "compress")
_DAY: tuple[Grouping] = ("day",)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    add_commands(app, usage, cost)


async def usage(
    client: Client,
    session: MaybeSession = None,
    memory: OnlyMemory = "",
    storage: Annotated[
        bool, typer.Option("--storage", help="Show how much is stored of it instead.")
    ] = False,
    tenant: Annotated[
        bool, typer.Option("--tenant", help="With --storage: of all sessions.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a session's model usage: calls, tokens and dollars by purpose and model."""
    if (tenant and not storage) or (memory and storage):
        raise CommandError("--storage goes without --memory, and --tenant with --storage")
    if tenant and session is not None:
        raise CommandError("--tenant is of all sessions: give it or --session, not both")
    named = client.session(session or DEFAULT_NAME)
    if storage:
        _print_storage(await (client.storage() if tenant else named.storage()), as_json)
        return
    report = await named.usage(memory)
    if as_json:
        show_json({"total": report.total, "lines": _lines_json(report, "purpose", "model")})
        return
    lines = [(line.purpose, line.model, line.usage) for line in report.lines]
    show_rows(
        ("purpose", "model", ">calls", ">input", ">predicted cached", ">output", ">USD"),
        [
            (
                purpose,
                model,
                f"{used.calls:,}",
                f"{used.input_tokens:,}",
                f"{used.predicted_cached_tokens / max(used.input_tokens, 1):.0%}",
                f"{used.output_tokens:,}",
                f"{used.cost_micro_usd / MICRO:.4f}" if used.is_priced else "unknown",
            )
            for purpose, model, used in (*lines, ("total", "", report.total))
        ],
    )


def _print_storage(sizes: Sequence[StoredSize], as_json: bool) -> None:
    if as_json:
        show_json([plain_json(one) for one in sizes])
        return
    lines: list[tuple[str, ...]] = []
    for one in sizes:
        about = "~" if one.is_estimated else ""
        lines.append((one.kind, f"{about}{one.rows:,}", f"{about}{one.bytes:,}"))
    show_rows(("stored", ">rows", ">bytes"), lines)
    if any(one.is_estimated for one in sizes):
        show("~ is an estimate")


async def cost(
    client: Client,
    session: Annotated[
        str, typer.Option("--session", "-s", help="The session; without it all of them.")
    ] = "",
    memory: OnlyMemory = "",
    by_day: Annotated[bool, typer.Option("--by-day", help="A line for each day.")] = False,
    day: Annotated[str, typer.Option("--day", help=_DAY_HELP, metavar="DAY")] = "",
    first: Annotated[
        str, typer.Option("--from", help=f"{_DAY_HELP} The first.", metavar="DAY")
    ] = "",
    last: Annotated[str, typer.Option("--to", help=f"{_DAY_HELP} The last.", metavar="DAY")] = "",
    system_tokens: Annotated[
        int,
        typer.Option(
            min=0, max=10_000_000, help="Tokens of the agent's system prompt, in each context."
        ),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Show what model calls cost; for a memory also what other ways of keeping it would have.

    Costs are read from the ledger. A PRISM memory's other ways of folding are simulated. For a
    state memory three costs of an agent's steps are compared: with the whole history in every
    context, with a new summary at every step (simulated), and with this memory.
    """
    if memory and not session:
        raise CommandError("--memory needs the session: give --session too")
    if system_tokens and not memory:
        raise CommandError("--system-tokens is for the steps of a state memory: give --memory")
    days = _days(day, first, last)
    if not session:
        grouped: list[Grouping] = ["session", *_DAY] if by_day else ["session"]
        _print_spend(await client.usage(group_by=grouped, **days), as_json)
        return
    named = client.session(session)
    if by_day:
        _print_spend(await named.usage(memory, group_by=["memory", *_DAY], **days), as_json)
        return
    report = await named.usage(memory, group_by=["memory", "purpose"], **days)
    found = await named.cost_report(memory, system_tokens=system_tokens, **days)
    _print_cost(found, report, memory, as_json)


def _days(day: str, first: str, last: str) -> dict[str, date | None]:
    if day and (first or last):
        raise CommandError("give --day, or --from and --to")
    named = {"--day": day} if day else {"--from": first, "--to": last}
    read = {name: _day(name, text) for name, text in named.items()}
    first_day, last_day = (read["--day"],) * 2 if day else (read["--from"], read["--to"])
    if first_day and last_day and first_day > last_day:
        raise CommandError(f"--from {first_day} is after --to {last_day}")
    return {"first_day": first_day, "last_day": last_day}


def _day(name: str, text: str) -> date | None:
    if not text:
        return None
    try:
        found = date.fromisoformat(text)
    except ValueError:
        found = None
    # Python reads other forms as well, which the service does not.
    if found is None or found.isoformat() != text:
        raise CommandError(f"{name}: {text!r} is no day such as 2026-11-30")
    return found


def _lines_json(report: UsageReport, *names: str) -> list[dict[str, Any]]:
    """Returns the lines of a report as plain JSON, with fields `names`; no memory is null."""
    return [
        {
            **{name: getattr(line, name) for name in names},
            **({"memory": line.memory or None} if "memory" in names else {}),
            **plain_json(line.usage),
        }
        for line in report.lines
    ]


def _print_spend(report: UsageReport, as_json: bool) -> None:
    if as_json:
        lines = _lines_json(report, "session", "memory", "day")
        show_json({"total": report.total, "lines": lines})
        return
    optional = [
        name for name in ("memory", "day") if any(getattr(line, name) for line in report.lines)
    ]
    names = ["session", *optional]
    _print_usage(
        names,
        [([str(getattr(line, name)) for name in names], line.usage) for line in report.lines],
        report.total,
    )


def _print_usage(
    names: Sequence[str], lines: Sequence[tuple[Sequence[str], Usage]], total: Usage
) -> None:
    """Prints a table with the figures of each line and of all, and which are unknown."""
    numbers = (">calls", ">failed", ">input", ">predicted", ">reported", ">output", ">USD")
    last = (["total", *[""] * (len(names) - 1)], total)
    show_rows((*names, *numbers), [(*named, *_figures(used)) for named, used in (*lines, last)])
    _note_unknown(total)


def _figures(used: Usage) -> Sequence[str]:
    return (
        f"{used.calls:,}",
        f"{used.failed_calls:,}",
        f"{used.input_tokens:,}",
        f"{used.predicted_cached_tokens:,}",
        f"{used.reported_cached_tokens:,}" if used.is_reported else "unknown",
        f"{used.output_tokens:,}",
        usd(used.cost_micro_usd) if used.is_priced else "unknown",
    )


def usd(micro_usd: int) -> str:
    """Returns dollars with six decimals, for sums of small calls."""
    return f"{micro_usd / MICRO:,.6f}"


def _note_unknown(total: Usage) -> None:
    if total.unreported_calls:
        show(
            f"reported: the provider says nothing of its cache for {total.unreported_calls:,}"
            f" of {total.calls:,} calls"
        )
    if total.unpriced_calls:
        show(
            f"USD: {total.unpriced_calls:,} of {total.calls:,} calls have no price; set one in"
            " PALIMPSEST_MODEL_PRICES"
        )


def _print_cost(found: CostReport, report: UsageReport, memory: str, as_json: bool) -> None:
    if as_json:
        show_json(_cost_json(found, report))
        return
    names = ("purpose", "model") if memory else ("memory", "purpose", "model")
    # Calls of no memory are the session's.
    blank = {"memory": "(session)"}
    lines = [
        ([getattr(line, name) or blank.get(name, "") for name in names], line.usage)
        for line in report.lines
    ]
    _print_usage(names, lines, found.total)
    _print_cache(found)
    if found.reading.prompts:
        show()
        guess = "; unreported cache hits as predicted" if found.total.unreported_calls else ""
        made = {line.purpose for line in report.lines}
        purposes = ", ".join(purpose for purpose in _READING if purpose in made)
        show(f"reading the log, measured ({purposes}{guess}):")
        _print_log_costs({"all of it": found.reading})
    if found.comparison is not None:
        _print_comparison(found.comparison)
    if found.accounting is not None:
        _print_accounting(found.accounting)


def _print_cache(found: CostReport) -> None:
    # Where no provider said anything there is nothing to compare with, and 0 would be a lie.
    unreported = found.total.unreported_calls == found.total.calls
    if unreported or not any(one.outcome for one in found.cache):
        return
    show()
    show_rows(
        ("cache", ">calls", ">predicted", ">reported"),
        [
            (
                one.outcome.replace("_", " ") or "not classified",
                f"{one.calls:,}",
                f"{one.predicted_cached_tokens:,}",
                f"{one.reported_cached_tokens:,}",
            )
            for one in found.cache
        ],
    )


def _print_comparison(compared: Comparison) -> None:
    newest = f"the newest {compared.steps:,}" if compared.truncated else f"all {compared.steps:,}"
    show()
    read = compared.positions
    where = "" if read is None else f", positions {read.first:,} to {read.last:,}"
    show(f"{newest} of {compared.all_steps:,} steps{where}:")
    rows = {"measured": compared.measured}
    rows |= {f"simulated: {text}": getattr(compared, name) for name, text in _SIMULATED.items()}
    _print_log_costs(rows)
    show(
        "measured: from the ledger, as providers report it. simulated: tokens are counted by"
        f" characters, money by the prices of {compared.model}, and the cache keeps each prompt"
        " until the next. Compare simulated lines with one another."
    )


def _print_log_costs(rows: dict[str, ReadingCost]) -> None:
    show_rows(
        ("", ">prompts", ">hit %", ">total", ">net", ">output", ">cost index", ">USD"),
        [
            (
                name,
                f"{one.prompts:,}",
                f"{one.hit_share:.0%}".rstrip("%"),
                f"{one.total_tokens:,}",
                f"{one.net_tokens:,}",
                f"{one.output_tokens:,}",
                f"{one.cost_index:.4f}",
                "unknown" if one.cost_micro_usd is None else usd(one.cost_micro_usd),
            )
            for name, one in rows.items()
        ],
    )


def _print_accounting(found: Accounting) -> None:
    steps = "one step" if found.steps == 1 else f"{found.steps:,} steps"
    show()
    show(f"an agent's {steps}, in tokens (PCC, section 3.3):")
    ratios = {"standard": found.standard_ratio, "recursive": found.recursive_ratio, "pcc": 1.0}
    loops: dict[str, LoopCost] = {name: getattr(found, name) for name in _LOOPS}
    show_rows(
        ("", ">processed", ">formula", ">compressions", ">total", ">ratio", ">longest context"),
        [
            (
                _LOOPS[name],
                f"{loop.processed_tokens:,}",
                f"{loop.formula_tokens:,.0f}" if loop.formula_tokens else "-",
                f"{loop.compression_tokens:,}",
                f"{loop.total_tokens:,}",
                f"{ratios[name]:.2f}",
                f"{loop.max_context_tokens:,}",
            )
            for name, loop in loops.items()
        ],
    )
    show(_means(found))
    show(
        "processed: contexts and steps, summed. formula: the paper's, from these means."
        " compressions: of this memory as the ledger has them, with their instructions, which"
        " the simulation is without."
    )


def _means(found: Accounting) -> str:
    known = f"task prompt {found.task_tokens:,} tokens, a step {found.step_tokens:,.1f}"
    if found.system_tokens:
        known = f"system prompt {found.system_tokens:,} tokens, {known}"
    if not found.period:
        return f"{known}; nothing is compressed: formula and simulation take the memory's settings"
    return f"{known}, vectors {found.state_tokens:,.1f}, {found.period:,.1f} steps a compression"


def _log_json(one: ReadingCost) -> dict[str, Any]:
    return {**plain_json(one), "net_tokens": one.net_tokens, "hit_share": one.hit_share}


def _cost_json(found: CostReport, report: UsageReport) -> dict[str, Any]:
    compared = found.comparison
    return {
        **plain_json(found),
        "lines": _lines_json(report, "memory", "purpose", "model"),
        "reading": _log_json(found.reading),
        "comparison": None if compared is None else _comparison_json(compared),
        "accounting": None if found.accounting is None else _accounting_json(found.accounting),
    }


def _accounting_json(found: Accounting) -> dict[str, Any]:
    loops = {name: getattr(found, name) for name in _LOOPS}
    totals = {
        name: {**plain_json(one), "total_tokens": one.total_tokens} for name, one in loops.items()
    }
    return {**plain_json(found), **totals}


def _comparison_json(compared: Comparison) -> dict[str, Any]:
    found = plain_json(compared)
    simulated = {name: _log_json(getattr(compared, name)) for name in _SIMULATED}
    for name in _SIMULATED:
        del found[name]
    return {**found, "measured": _log_json(compared.measured), "simulated": simulated}
