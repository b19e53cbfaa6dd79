"""`palimpsest access`: tenants, keys, and the first key of a deployment."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from palimpsest import (
    ApiKeyInfo,
    Client,
    CreatedApiKey,
    QuotaInfo,
    QuotaName,
    Retention,
    Scope,
    TenantInfo,
)
from service.cli import audit, source
from service.cli.app import SettingsPath, new_group
from service.cli.command import Json, add_group, new_request_id
from service.cli.deployment import DataDir, database_url_of, find_deployment
from service.cli.output import CommandError, cut, plain_json, say, show, show_json, show_list
from service.cli.session import retention, show_retention

if TYPE_CHECKING:
    from service.domain.access.credentials import KeyText
    from service.settings.config import Config

OfTenant = Annotated[
    str, typer.Option("--tenant", help="The tenant, for administrators of the system tenant.")
]
TenantId = Annotated[str, typer.Argument(help="The tenant's id.")]
KeyId = Annotated[str, typer.Argument(help="The key's id: what follows pk_ in it.")]
Scopes = Annotated[
    list[str],
    typer.Option(
        "--scope",
        metavar="SCOPE",
        help=f"What it allows: {', '.join(get_args(Scope))}; may be repeated.",
    ),
]
Days = Annotated[
    int | None, typer.Option(min=1, max=36_500, help="Days until it expires; default: never.")
]
Prefix = Annotated[
    str, typer.Option(help="Only for sessions whose ids begin with this.", metavar="PREFIX")
]
Name = Annotated[str, typer.Option("--name", help="What it is for.")]
#: Digits of a quota, which is a signed number of 64 bits.
MAX_QUOTA_DIGITS = 18


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = new_group("Access: tenants, keys, and what was done.")
    group.command()(bootstrap)
    tenants = "Tenants: create, list, show, retain, suspend, resume, delete."
    add_group(group, "tenant", tenants, create, list_, show_, retain, suspend, resume, delete)
    quotas = new_group("Quotas: show, set.")
    audit.add_named(quotas, show=show_quota, set=set_quota)
    group.add_typer(quotas, name="quota")
    keys = new_group("Keys: create, list, rotate, revoke.")
    audit.add_named(keys, create=create_key, list=list_keys, rotate=rotate_key, revoke=revoke_key)
    group.add_typer(keys, name="key")
    source.register(group)
    audit.register(group)
    app.add_typer(group, name="access")


def bootstrap(
    tenant: Annotated[str, typer.Option(help="The tenant that the key is of.")] = "system",
    scope: Scopes = ["admin"],  # noqa: B006 - a command's default is read, never changed
    days: Days = None,
    name: Name = "bootstrap",
    data_dir: DataDir = None,
    as_json: Json = False,
    settings_path: SettingsPath = None,
) -> None:
    """Create a key without having one, in the database itself.

    It needs the right to write to the database, which has to be migrated: it makes the first key
    of a deployment, and replaces the last one when it is lost.
    """
    config = find_deployment(data_dir).config
    key = asyncio.run(_bootstrap(config, tenant, _scopes(scope), days, name))
    if as_json:
        show_json({"id": key.key_id, "tenant": tenant, "key": key.text})
        return
    _show_key(key.key_id, key.text)


async def _bootstrap(
    config: "Config", tenant: str, scopes: list[Scope], days: int | None, name: str
) -> "KeyText":
    from service.domain.access import identity
    from service.domain.access.keys import NewKey
    from service.domain.values.errors import PalimpsestError
    from service.usecases.access.bootstrap import create_key
    from storage.engine.database import Database
    from storage.engine.errors import StorageError

    url = database_url_of(config)
    new = NewKey(
        display_name=name,
        scopes=frozenset(map(identity.Scope, scopes)),
        session_prefix="",
        expires_at=_end(days),
    )
    database = Database.connect(
        url, pool_size=1, name="palimpsest-bootstrap", pooled=config.is_pooled
    )
    try:
        _, (_, text) = await create_key(database, tenant, new, max_keys=config.limits.max_keys)
    except PalimpsestError as error:
        raise CommandError(str(error)) from error
    except StorageError as error:
        raise CommandError(f"cannot write to the database: {error}") from error
    finally:
        await database.close()
    return text


async def create(
    client: Client,
    tenant: TenantId,
    name: Annotated[str, typer.Option("--name", help="A name for people.")] = "",
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Succeed where it is there.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a tenant. It needs a key next: `palimpsest access key create --tenant`."""
    made = await client.access.create_tenant(
        tenant, display_name=name, exist_ok=exist_ok, request_id=new_request_id()
    )
    _show_tenant(made, as_json)


async def list_(client: Client, as_json: Json = False) -> None:
    """List all tenants."""
    await show_list(
        client.access.tenants(),
        lambda one: [(one.id, one.display_name, _state(one), _day(one.created_at))],
        ("tenant", "name", "state", ">created"),
        as_json=as_json,
    )


async def show_(
    client: Client,
    tenant: Annotated[str, typer.Argument(help="The tenant's id; default: that of the key.")] = "",
    as_json: Json = False,
) -> None:
    """Show a tenant."""
    _show_tenant(await client.access.tenant(tenant), as_json)


async def retain(
    client: Client,
    tenant: TenantId,
    policy: Annotated[
        list[str] | None, typer.Argument(metavar="WHAT=DAYS", help="As `session update --retain`.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Keep all data for ever.")] = False,
    as_json: Json = False,
) -> None:
    """Say how long data of a tenant's sessions is kept, as a whole; without a policy show it."""
    if clear and policy:
        raise CommandError("--clear goes without a policy")
    if not (clear or policy):
        _show_policy(await client.access.tenant(tenant), as_json)
        return
    changed = await client.access.update_tenant(
        tenant, retention=retention(policy or ()), request_id=new_request_id()
    )
    _show_tenant(changed, as_json)


async def suspend(client: Client, tenant: TenantId, as_json: Json = False) -> None:
    """Suspend a tenant: its calls are refused within 10 seconds, its data is kept."""
    changed = await client.access.update_tenant(tenant, suspended=True, request_id=new_request_id())
    _show_tenant(changed, as_json)


async def resume(client: Client, tenant: TenantId, as_json: Json = False) -> None:
    """Resume a suspended tenant."""
    changed = await client.access.update_tenant(
        tenant, suspended=False, request_id=new_request_id()
    )
    _show_tenant(changed, as_json)


async def delete(
    client: Client,
    tenant: TenantId,
    confirm: Annotated[
        str, typer.Option("--yes-delete", help="The tenant's id again: nothing is restored.")
    ],
    reason: Annotated[str, typer.Option(help="Why, for the receipt; no personal data.")] = "",
    as_json: Json = False,
) -> None:
    """Delete a tenant with all that it has, for good."""
    if confirm != tenant:
        raise CommandError("--yes-delete: give the tenant's id again")
    made = await client.access.delete_tenant(tenant, reason=reason, request_id=new_request_id())
    if as_json:
        show_json(plain_json(made))
    else:
        show(f"deleted; its receipt: erasure receipt {made.id} --tenant {made.tenant_uid}")


async def show_quota(client: Client, tenant: OfTenant = "", as_json: Json = False) -> None:
    """Show what a tenant may use."""
    _show_quota(await client.access.quota(tenant=tenant), as_json)


async def set_quota(
    client: Client,
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=NUMBER...",
            help=f"{', '.join(get_args(QuotaName))}; 0 does not limit, `default` restores.",
        ),
    ],
    tenant: OfTenant = "",
    as_json: Json = False,
) -> None:
    """Set what a tenant may use; servers enforce it within 10 seconds."""
    given = dict(_quota_change(change) for change in changes)
    changed = await client.access.update_quota(given, tenant=tenant, request_id=new_request_id())
    _show_quota(changed, as_json)


def _quota_change(given: str) -> tuple[QuotaName, int | None]:
    name, _, number = given.partition("=")
    if name not in get_args(QuotaName):
        raise CommandError(f"{name!r} is none of {', '.join(get_args(QuotaName))}")
    is_number = number.isascii() and number.isdecimal() and len(number) <= MAX_QUOTA_DIGITS
    if number != "default" and not is_number:
        raise CommandError(
            f"{cut(given, 60)!r}: give a number of at most {MAX_QUOTA_DIGITS} digits, 0 or more, or"
            f" `default`: {name}=100"
        )
    return cast("QuotaName", name), None if number == "default" else int(number)


def _show_quota(quota: QuotaInfo, as_json: bool) -> None:
    if as_json:
        show_json(quota)
        return
    for name in get_args(QuotaName):
        limit = getattr(quota, name)
        show(f"{name}: {limit if limit else 'not limited'}")


async def create_key(
    client: Client,
    scope: Scopes,
    tenant: OfTenant = "",
    name: Name = "",
    session_prefix: Prefix = "",
    days: Days = None,
    as_json: Json = False,
) -> None:
    """Create a key, and print it: it is not shown again."""
    made = await client.access.create_key(
        _scopes(scope),
        tenant=tenant,
        display_name=name,
        session_prefix=session_prefix,
        expires_at=_end(days),
    )
    _show_created(made, as_json)


async def list_keys(client: Client, tenant: OfTenant = "", as_json: Json = False) -> None:
    """List keys; expired and revoked ones as well."""
    await show_list(
        client.access.keys(tenant=tenant),
        lambda one: [_key_row(one)],
        ("key", "name", "state", "scopes", "sessions", ">created", ">expires", ">last used"),
        as_json=as_json,
    )


async def rotate_key(
    client: Client,
    key: KeyId,
    tenant: OfTenant = "",
    overlap_hours: Annotated[
        float, typer.Option(min=0, max=720, help="How long the old key stays valid.")
    ] = 24.0,
    days: Annotated[
        int | None,
        typer.Option(
            min=1, max=36_500, help="Days until it expires; default: as many as the old one had."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a key in place of another, and print it: it is not shown again."""
    overlap = timedelta(hours=overlap_hours)
    made = await client.access.rotate_key(
        key, tenant=tenant, overlap=overlap, expires_at=_end(days)
    )
    _show_created(made, as_json)


async def revoke_key(
    client: Client, key: KeyId, tenant: OfTenant = "", as_json: Json = False
) -> None:
    """Revoke a key for good: no server accepts it after 10 seconds."""
    revoked = await client.access.revoke_key(key, tenant=tenant, request_id=new_request_id())
    show_json(revoked) if as_json else show(f"revoked {revoked.id}")


def _scopes(given: list[str]) -> list[Scope]:
    known = get_args(Scope)
    for one in given:
        if one not in known:
            raise CommandError(f"--scope: {one!r} is none of {', '.join(known)}")
    return cast("list[Scope]", list(dict.fromkeys(given)))


def _end(days: int | None) -> datetime | None:
    return None if days is None else datetime.now(UTC) + timedelta(days=days)


def _show_created(made: CreatedApiKey, as_json: bool) -> None:
    if as_json:
        show_json({**plain_json(made.info), "key": made.key})
        return
    _show_key(made.info.id, made.key)


def _show_key(id: str, key: str) -> None:
    # What is piped into a file is the key alone.
    show(key)
    say(f"This is key {id}. Keep it now: it is not stored and cannot be shown again.")


def _show_tenant(one: TenantInfo, as_json: bool) -> None:
    if as_json:
        show_json(one)
        return
    name = f" ({one.display_name})" if one.display_name else ""
    show(f"{one.id}{name}: {_state(one)}")
    show_retention(one.retention)


def _show_policy(one: TenantInfo, as_json: bool) -> None:
    if not as_json and one.retention == Retention():
        show(f"{one.id}: all data is kept for ever")
        return
    _show_tenant(one, as_json)


def _state(one: TenantInfo) -> str:
    return "active" if one.suspended_at is None else f"suspended since {_day(one.suspended_at)}"


def _key_row(one: ApiKeyInfo) -> tuple[str, ...]:
    sessions = f"{one.session_prefix}*" if one.session_prefix else "all"
    times = (one.created_at, one.expires_at, one.last_used_at)
    scopes = " ".join(one.scopes)
    return (one.id, one.display_name, one.state, scopes, sessions, *map(_day, times))


def _day(at: datetime | None) -> str:
    return "never" if at is None else f"{at:%Y-%m-%d %H:%M}"
