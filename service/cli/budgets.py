"""Commands for budgets: setting, listing and clearing them."""

from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import typer
from rich.table import Table

import palimpsest
from palimpsest.budgets import MAX_LIMIT, Budget, BudgetSet, Period
from service.cli.output import CommandError, plain, show, show_json, show_table
from service.cli.talk import DEFAULT_ADDRESS, Address, Json, run

PeriodArgument = Annotated[Period, typer.Argument(help="day (UTC) or total.", metavar="day|total")]
Tenant = Annotated[bool, typer.Option("--tenant", help="All sessions together.")]
OfSession = Annotated[str, typer.Option("--session", "-s", help="This session.")]
OfMemory = Annotated[str, typer.Option("--memory", "-m", help="This memory of the session.")]

#: Of a dollar, as the service counts.
_MICRO = 1_000_000


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    budget = typer.Typer(
        no_args_is_help=True, help="Budgets: bound what model calls may cost, a day or in total."
    )
    budget.command("set")(budget_set)
    budget.command("list")(budget_list)
    budget.command("clear")(budget_clear)
    app.add_typer(budget, name="budget")


def budget_set(
    period: PeriodArgument,
    tenant: Tenant = False,
    session: OfSession = "",
    memory: OfMemory = "",
    tokens: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_LIMIT, help="Tokens of prompts and replies together."),
    ] = None,
    usd: Annotated[str, typer.Option(help="US dollars, for example 2.50.")] = "",
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Set a budget, in place of the one before. Held memories it concerns try again."""
    _check_owner(tenant, session, memory)
    if tokens is None and not usd:
        raise CommandError("give --tokens or --usd, or both")
    micro_usd = _micro_usd(usd) if usd else None

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            done = await _owner(client, session, memory).set_budget(
                period, limit_tokens=tokens, limit_micro_usd=micro_usd
            )
        _show_set(done, as_json)

    run(work())


def budget_list(
    session: Annotated[str, typer.Option("--session", "-s", help="Only this session's.")] = "",
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """List budgets and what is spent of them."""

    async def work() -> None:
        table = Table(box=None, pad_edge=False)
        for name in ("budget of", "period"):
            table.add_column(name)
        for name in ("limit", "spent", "reserved"):
            table.add_column(name, justify="right")
        async with palimpsest.connect(address) as client:
            found = (client.session(session) if session else client).budgets()
            async for one in found:
                if as_json:
                    show_json(_budget_json(one))
                for limit, spent, reserved in _sums(one):
                    table.add_row(plain(_name(one)), one.period, limit, spent, reserved)
        if not as_json:
            show_table(table)

    run(work())


def budget_clear(
    period: PeriodArgument,
    tenant: Tenant = False,
    session: OfSession = "",
    memory: OfMemory = "",
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Take a budget away. Held memories it concerned try again."""
    _check_owner(tenant, session, memory)

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            woken = await _owner(client, session, memory).clear_budget(period)
        if as_json:
            show_json({"woken_memories": woken})
        else:
            show(f"cleared{_woken(woken)}")

    run(work())


def _check_owner(tenant: bool, session: str, memory: str) -> None:
    if tenant == bool(session):
        raise CommandError("give --session (and --memory), or --tenant: whose budget is it?")
    if memory and not session:
        raise CommandError("--memory needs --session")


def _owner(
    client: palimpsest.Client, session: str, memory: str
) -> palimpsest.Client | palimpsest.Session | palimpsest.Memory:
    if not session:
        return client
    return client.session(session).memory(memory) if memory else client.session(session)


def _micro_usd(text: str) -> int:
    refused = f"--usd: {text!r} is negative, too large, or has over 6 decimals"
    try:
        amount = Decimal(text)
    except InvalidOperation as error:
        raise CommandError(f"--usd: {text!r} is no amount such as 2.50") from error
    if not amount.is_finite():
        raise CommandError(f"--usd: {text!r} is no amount such as 2.50")
    # Bounded first: of 1e999999999 the millionths would be a number of as many digits.
    if not 0 <= amount <= MAX_LIMIT:
        raise CommandError(refused)
    micro = int(amount * _MICRO)
    if micro != amount * _MICRO or micro > MAX_LIMIT:
        raise CommandError(refused)
    return micro


def _name(one: Budget) -> str:
    if not one.session:
        return "the tenant"
    return f"{one.session} / {one.memory}" if one.memory else one.session


def _sums(one: Budget) -> list[tuple[str, str, str]]:
    rows = []
    if one.limit_tokens is not None:
        rows.append(
            (
                f"{one.limit_tokens:,} tokens",
                f"{one.spent_tokens:,}",
                f"{one.reserved_tokens:,}",
            )
        )
    if one.limit_micro_usd is not None:
        rows.append(
            (
                usd_text(one.limit_micro_usd),
                usd_text(one.spent_micro_usd),
                usd_text(one.reserved_micro_usd),
            )
        )
    return rows


def usd_text(micro_usd: int) -> str:
    """Money in dollars, with as many decimals as it has, at least two."""
    whole, rest = divmod(micro_usd, _MICRO)
    return f"${whole:,}.{f'{rest:06}'.rstrip('0').ljust(2, '0')}"


def _woken(woken: int) -> str:
    if not woken:
        return ""
    return f"; {woken} held {'memory tries' if woken == 1 else 'memories try'} again"


def _show_set(done: BudgetSet, as_json: bool) -> None:
    one = done.budget
    if as_json:
        show_json({**_budget_json(one), "woken_memories": done.woken_memories})
        return
    limits = " and ".join(limit for limit, _, _ in _sums(one))
    spent = " and ".join(spent for _, spent, _ in _sums(one))
    when = "a day" if one.period == "day" else "in total"
    show(f"{_name(one)}: {limits} {when}, {spent} spent{_woken(done.woken_memories)}")


def _budget_json(one: Budget) -> dict[str, Any]:
    return {
        "session": one.session or None,
        "memory": one.memory or None,
        "period": one.period,
        "limit_tokens": one.limit_tokens,
        "limit_micro_usd": one.limit_micro_usd,
        "spent_tokens": one.spent_tokens,
        "spent_micro_usd": one.spent_micro_usd,
        "unpriced_calls": one.unpriced_calls,
        "reserved_tokens": one.reserved_tokens,
        "reserved_micro_usd": one.reserved_micro_usd,
        "resets_at": None if one.resets_at is None else one.resets_at.isoformat(),
    }
