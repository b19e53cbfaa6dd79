"""The doctor checks each part of a deployment by itself; a part that is down is a line like
others."""

import platform
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from service.domain.operations import doctor as judge
from service.domain.operations.doctor import Finding, Severity, bad, ok, warn
from service.domain.prism.losses import losses_of
from service.domain.values.tenancy import SYSTEM_TENANT
from service.llm.providers.doctor import look_at_models
from service.settings import certificates
from service.settings.config import Config
from service.settings.reading import findings
from service.usecases.operations.strangers import ADVICE, strangers
from service.usecases.operations.tenants import NoTenant, all_tenants, the_tenant
from storage.calls import conditions
from storage.engine import database_state, pooling
from storage.engine.database import Database, Transaction
from storage.engine.errors import StorageError
from storage.engine.signals import are_heard
from storage.log import retention_turns
from storage.memories import queue, waiting
from storage.operations import doctor as look
from storage.operations import sizes
from storage.operations.doctor import ServerFacts
from storage.operations.tenants import Tenant

#: Reads facts of a tenant, and judges them.
_Read = Callable[[Transaction], Coroutine[Any, Any, Any]]
_Judge = Callable[[Any], list[Finding]]

#: What search uses when it is there: see docs/guides/running.md.
EXTENSIONS = ("btree_gin", "vector")
#: The largest tables that are named.
TABLES = 6
#: Tenants that one run checks, unless one is named.
MAX_TENANTS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Migrations:
    """What this release knows of the database's migrations."""

    newest: str
    known: frozenset[str]


class Doctor:
    """Checks everything that `config` names."""

    def __init__(
        self,
        config: Config,
        migrations: Migrations,
        *,
        tenant: str | None = None,
        hidden: frozenset[str] = frozenset(),
    ) -> None:
        """`tenant`: the name or id of the only one whose data is looked at; None: all.
        `hidden`: names of settings that the processes have, and `config` has not."""
        self._config = config
        self._hidden = hidden
        self._migrations = migrations
        self._tenant = tenant

    async def findings(self) -> AsyncIterator[Finding]:
        """Yields findings one after the other, as they are found. Reads only."""
        yield _release()
        for one in findings(self._config) or [ok("settings", "nothing looks wrong")]:
            yield one
        if (tls := certificates.finding(self._config)) is not None:
            yield tls
        async for one in self._database():
            yield one
        yield await self._redis()
        for one in await look_at_models(self._config, self._hidden):
            yield one

    async def _database(self) -> AsyncIterator[Finding]:
        if self._config.database_url is None and "database_url" in self._hidden:
            said = "the running `up` has one of its own, with a password that is not known here"
            yield bad("database", said, "give this command its PALIMPSEST_DATABASE_URL")
            return
        if self._config.database_url is None:
            said = "PALIMPSEST_DATABASE_URL is not set"
            yield bad("database", said, "set it, or name the folder of an `up` by --data-dir")
            return
        url = self._config.database_url.get_secret_value()
        try:
            facts = await look.read_server(url)
        except StorageError as error:
            said = f"cannot be reached: {error}"
            yield bad("database", said, "start it, or look after PALIMPSEST_DATABASE_URL")
            return
        yield judge.judge_server(facts.version, facts.number)
        yield judge.judge_durability(facts.settings)
        yield judge.judge_writes(
            is_standby=facts.is_standby,
            is_read_only=facts.is_read_only,
            waiting=facts.waiting_commits,
        )
        yield judge.judge_logged(facts.settings)
        yield judge.judge_clock(facts.clock_off_seconds, facts.round_trip_seconds)
        yield _extensions(facts)
        pooler = await self._pooler(url)
        yield pooler
        if pooler.level is Severity.BAD and not self._config.is_pooled:
            return
        async with _connected(url, pooled=self._config.is_pooled) as database:
            if self._config.signals_database_url is not None:
                yield await _signals(database, self._config.signals_database_url.get_secret_value())
            async for one in self._tables(database):
                yield one

    async def _pooler(self, url: str) -> Finding:
        """Checks whether each connection is a session of the server's."""
        if self._config.is_pooled:
            if self._config.signals_database_url is None:
                said = "PALIMPSEST_SIGNALS_DATABASE_URL is not set, and LISTEN passes no pooler"
                return bad("pooler", said, "set it to the server itself")
            return ok("pooler", "each transaction may have another connection to the server")
        try:
            lost = await pooling.lost_sessions(url)
        except StorageError as error:
            return bad("pooler", f"cannot be seen: {error}", "look after PALIMPSEST_DATABASE_URL")
        if lost:
            advice = "name the server itself, or set PALIMPSEST_DATABASE_POOLER=transaction"
            return bad("pooler", lost, advice)
        return ok("pooler", "none between us and the server")

    async def _tables(self, database: Database) -> AsyncIterator[Finding]:
        """Checks what our role sees."""
        try:
            with look.seen():
                found = await database_state.read(database)
                unguarded = await look.open_tables(database)
        except StorageError as error:
            advice = "run `palimpsest migrate`, and grant its roles to this login"
            yield bad("migrations", f"cannot look as palimpsest_app: {error}", advice)
            return
        yield judge.judge_role(found.role, unfit=found.unfit, open_tables=unguarded)
        where = judge.judge_migration(
            found.migration, self._migrations.newest, self._migrations.known
        )
        yield where
        if where.level is Severity.BAD:
            return
        yield await _sizes(database)
        for one in await self._queue(database):
            yield one
        for one in await self._conditions(database):
            yield one
        async for one in self._tenants(database):
            yield one

    async def _tenants(self, database: Database) -> AsyncIterator[Finding]:
        """Checks the data of tenants: each look yields one line if all is well, else the faults."""
        try:
            tenants = await self._looked_at(database)
        except (StorageError, NoTenant) as error:
            advice = "name one that is there, or grant what the role lacks"
            yield bad("tenants", f"cannot be seen: {error}", advice)
            return
        if len(tenants) > MAX_TENANTS:
            tenants = tenants[:MAX_TENANTS]
            said = f"there are more than {MAX_TENANTS}, and the others were not looked at"
            yield warn("tenants", said, "look at one of them with --tenant")
        for name, read, judged in self._looks():
            found = [
                (tenant, one)
                for tenant in tenants
                for one in await _look(database, tenant, read, judged)
            ]
            for one in _summed_up(found, len(tenants)):
                yield replace(one, name=name)

    async def _conditions(self, database: Database) -> list[Finding]:
        """Checks which models give no replies for now."""
        try:
            with look.seen():
                async with database.without_tenant(name="doctor") as apart:
                    found = await conditions.read(apart)
                number: Counter[str] = Counter()
                for tenant in await self._looked_at(database) if found else ():
                    async with database.transaction(tenant.tenant_id, name="doctor") as tx:
                        number.update(await waiting.count_waiting(tx))
        except (StorageError, NoTenant) as error:
            return [warn("models", f"could not be seen: {error}", "grant what the role lacks")]
        return judge.judge_conditions(found, number)

    async def _looked_at(self, database: Database) -> list[Tenant]:
        """Returns the tenants to check. Raises NoTenant, StorageError."""
        if self._tenant is not None:
            return [await the_tenant(database, self._tenant)]
        found = []
        async with aclosing(all_tenants(database)) as every:
            async for one in every:
                found.append(one)
                if len(found) > MAX_TENANTS:
                    break
        return found

    def _looks(self) -> tuple[tuple[str, _Read, _Judge], ...]:
        backlog = self._config.limits.backlog_chunks
        return (
            ("memories", look.read_memories, lambda found: judge.judge_memories(found, backlog)),
            ("losses", look.read_losses, _judge_losses),
            (
                "answers",
                partial(look.read_pending, table="answer"),
                lambda found: [judge.judge_pending("answers", *found)],
            ),
            (
                "drafts",
                partial(look.read_pending, table="schema_draft"),
                lambda found: [judge.judge_pending("drafts", *found)],
            ),
            ("intents", look.read_intents, lambda found: [judge.judge_intents(*found)]),
            (
                "retention",
                retention_turns.seconds_since_last,
                lambda found: [judge.judge_retention(found, self._config.retention_seconds)],
            ),
            ("spend", look.read_spend, lambda found: [judge.judge_spend(adds_up=found)]),
            ("index", look.read_index, lambda found: [judge.judge_index(*found)]),
        )

    async def _queue(self, database: Database) -> list[Finding]:
        try:
            found = await queue.read_facts(
                database, dead_after_seconds=self._config.dead_after_seconds
            )
        except StorageError as error:
            return [bad("queue", f"cannot be seen: {error}", "run `palimpsest migrate`")]
        return judge.judge_queue(
            queued=found.queued,
            running=found.running,
            oldest_seconds=found.oldest_seconds,
            workers=found.workers,
            silent=found.silent,
        )

    async def _redis(self) -> Finding:
        if self._config.redis_url is None and "redis_url" in self._hidden:
            said = "the running `up` has one of its own, with a password that is not known here"
            return warn("redis", said, "give this command its PALIMPSEST_REDIS_URL")
        if self._config.redis_url is None:
            return ok("redis", "none is configured: each process predicts from what it sent")
        try:
            name, policy = await look.read_redis(self._config.redis_url.get_secret_value())
        except StorageError as error:
            advice = "start it; until then each process predicts from what it sent itself"
            return warn("redis", f"cannot be reached: {error}", advice)
        return ok("redis", f"{name}, {policy or 'no policy reported'} when it is full")


def _release() -> Finding:
    try:
        release = version("palimpsest-server")
    except PackageNotFoundError:
        release = "not installed as a package"
    if other := strangers():
        return warn("release", other, ADVICE)
    return ok("release", f"palimpsest {release}, Python {platform.python_version()}")


async def _sizes(database: Database) -> Finding:
    """Reports the largest tables."""
    try:
        with look.seen():
            async with database.without_tenant(name="doctor") as tx:
                total, largest = await sizes.largest_tables(tx, TABLES)
    except StorageError as error:
        return warn("sizes", f"cannot be seen: {error}", "grant what the role lacks")
    return judge.judge_sizes(total, [(one.table, one.bytes) for one in largest])


async def _signals(database: Database, url: str) -> Finding:
    """Checks whether processes hear each other."""
    try:
        heard = await are_heard(database, url)
    except StorageError as error:
        advice = "look after PALIMPSEST_SIGNALS_DATABASE_URL"
        return bad("signals", f"cannot be heard: {error}", advice)
    if not heard:
        said = "what is sent to PALIMPSEST_DATABASE_URL is not heard"
        advice = "let PALIMPSEST_SIGNALS_DATABASE_URL name the same database, without a pooler"
        return bad("signals", said, advice)
    return ok("signals", "processes hear each other")


def _summed_up(found: Sequence[tuple[Tenant, Finding]], tenants: int) -> Sequence[Finding]:
    """Returns the findings of one look: of several tenants only the faults, with their tenants.

    Beside the system tenant, which each deployment has, a single one is not named.
    """
    if tenants == 1:
        return [one for _, one in found]
    ordinary = [(tenant, one) for tenant, one in found if tenant.tenant_id != SYSTEM_TENANT]
    named = [
        (one, replace(one, said=f"tenant {tenant.name}: {one.said}"))
        for tenant, one in found
        if one.level is not Severity.OK
    ]
    if len({tenant.tenant_id for tenant, _ in ordinary}) == 1:
        alone = [one for _, one in ordinary]
        return [*alone, *(text for one, text in named if one not in alone)]
    return [text for _, text in named] or [ok("", f"nothing looks wrong in {tenants} tenants")]


async def _look(database: Database, tenant: Tenant, read: _Read, judged: _Judge) -> list[Finding]:
    try:
        with look.seen():
            async with database.transaction(tenant.tenant_id, name="doctor") as tx:
                return judged(await read(tx))
    except StorageError as error:
        return [warn("", f"could not be seen: {error}", "grant what the role lacks")]


def _judge_losses(found: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Finding]:
    return judge.judge_losses([(name, one) for name, stored in found for one in losses_of(stored)])


def _extensions(facts: ServerFacts) -> Finding:
    missing = [name for name in EXTENSIONS if name not in facts.extensions]
    there = ", ".join(f"{n} {facts.extensions[n]}" for n in EXTENSIONS if n in facts.extensions)
    if missing:
        said = f"{', '.join(missing)} missing: search is slower, or by words only"
        return warn("extensions", said, "see docs/guides/running.md#what-search-needs")
    return ok("extensions", there)


@asynccontextmanager
async def _connected(url: str, *, pooled: bool) -> AsyncIterator[Database]:
    database = Database.connect(url, pool_size=1, name="palimpsest-doctor", pooled=pooled)
    try:
        yield database
    finally:
        await database.close()
