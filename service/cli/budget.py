"""`palimpsest budget`: set, list and delete budgets."""

from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal

import typer

import palimpsest
from palimpsest import Budget, Client
from service.cli.command import LAST, Json, MissingOk, add_group, new_request_id
from service.cli.output import MICRO, CommandError, plain_json, show, show_json, show_list

Period = Literal["day", "total"]
PeriodArgument = Annotated[Period, typer.Argument(help="day (UTC) or total.", metavar="day|total")]
Tenant = Annotated[bool, typer.Option("--tenant", help="All sessions together.")]
OfSession = Annotated[str, typer.Option("--session", "-s", help="This session.")]
OfMemory = Annotated[str, typer.Option("--memory", "-m", help="This memory of the session.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    summary = "Budgets: bound what model calls may cost, a day or in total."
    add_group(app, "budget", summary, set_, list_, delete)


async def set_(
    client: Client,
    period: PeriodArgument,
    tenant: Tenant = False,
    session: OfSession = "",
    memory: OfMemory = "",
    tokens: Annotated[
        int | None,
        typer.Option(min=0, max=LAST, help="Tokens of prompts and replies together."),
    ] = None,
    usd: Annotated[str, typer.Option(help="US dollars, for example 2.50.")] = "",
    etag: Annotated[
        str, typer.Option(help="Only while the budget before has it, as `list --json` shows it.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Set a budget, in place of the one before. Memories that it held try again."""
    _check_owner(tenant, session, memory)
    if tokens is None and not usd:
        raise CommandError("give --tokens or --usd, or both")
    done = await _owner(client, session, memory).set_budget(
        period,
        limit_tokens=tokens,
        limit_micro_usd=_micro_usd(usd) if usd else None,
        etag=etag,
        request_id=new_request_id(),
    )
    _show_set(done, as_json)


async def list_(
    client: Client,
    session: Annotated[str, typer.Option("--session", "-s", help="Only this session's.")] = "",
    as_json: Json = False,
) -> None:
    """List budgets and what is spent of them."""
    await show_list(
        (client.session(session) if session else client).budgets(),
        lambda one: [(_name(one), one.period, *sums) for sums in _sums(one)],
        ("budget of", "period", ">limit", ">spent", ">reserved"),
        as_json=as_json,
        to_json=_json,
    )


async def delete(
    client: Client,
    period: PeriodArgument,
    tenant: Tenant = False,
    session: OfSession = "",
    memory: OfMemory = "",
    missing_ok: MissingOk = False,
    as_json: Json = False,
) -> None:
    """Delete a budget. Memories that it held try again."""
    _check_owner(tenant, session, memory)
    await _owner(client, session, memory).delete_budget(
        period, missing_ok=missing_ok, request_id=new_request_id()
    )
    show_json({}) if as_json else show("deleted")


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
    if not 0 <= amount <= LAST:
        raise CommandError(refused)
    micro = int(amount * MICRO)
    if micro != amount * MICRO or micro > LAST:
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
    """Returns money in dollars, with as many decimals as it has, at least two."""
    whole, rest = divmod(micro_usd, MICRO)
    return f"${whole:,}.{f'{rest:06}'.rstrip('0').ljust(2, '0')}"


def _show_set(one: Budget, as_json: bool) -> None:
    if as_json:
        show_json(_json(one))
        return
    limits = " and ".join(limit for limit, _, _ in _sums(one))
    spent = " and ".join(spent for _, spent, _ in _sums(one))
    when = "a day" if one.period == "day" else "in total"
    show(f"{_name(one)}: {limits} {when}, {spent} spent")


def _json(one: Budget) -> dict[str, Any]:
    owner = {"session": one.session or None, "memory": one.memory or None}
    return {**plain_json(one), **owner}
