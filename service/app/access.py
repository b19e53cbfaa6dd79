"""Wires what verifies the clients of an API server, and what administers them."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from service.rpc.access_service import AccessService
from service.rpc.interceptors.authentication import Authentication, CredentialVerifier
from service.rpc.interceptors.quota_limit import QuotaLimit
from service.rpc.pages import Pages
from service.settings import listening
from service.settings.config import Config
from service.usecases.access.audit_log import AuditLog
from service.usecases.access.call_slots import LEASE_SECONDS, CallSlots
from service.usecases.access.certificate_verifier import CertificateVerifier
from service.usecases.access.erasures import Erasures
from service.usecases.access.kept_out import KeptOutTexts
from service.usecases.access.key_verifier import KeyVerifier
from service.usecases.access.keys import Keys
from service.usecases.access.local_access import LocalAccess
from service.usecases.access.quotas import QuotaGuard, Quotas
from service.usecases.access.rate_limits import RateLimits
from service.usecases.access.sources import Sources
from service.usecases.access.tenant_directory import TenantDirectory
from service.usecases.access.tenants import Tenants
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations.erasure_journal import ErasureJournal
from storage.access.shared_slots import SharedSlots
from storage.access.token_buckets import SharedBuckets
from storage.engine.database import Database
from storage.engine.redis_link import RedisLink

#: How long a call waits for Redis to count it against a quota, at most.
QUOTA_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """What an API server needs."""

    authentication: Authentication
    service: AccessService
    quotas: QuotaGuard
    quota_limit: QuotaLimit
    slots: CallSlots
    #: Runs as long as the server does.
    run: Callable[[], Coroutine[Any, Any, None]]


def access_of(
    config: Config, database: Database, wake_ups: WakeUps, pages: Pages, journal: ErasureJournal
) -> Access:
    """Returns what verifies and administers the clients of one server."""
    seconds = config.key_cache_seconds
    keys = KeyVerifier(database, seconds=seconds)
    directory = TenantDirectory(database, seconds=seconds)

    redis = _redis(config)
    rates = RateLimits(SharedBuckets(redis))
    slots = CallSlots(SharedSlots(redis, uuid4().hex, lease_seconds=LEASE_SECONDS))
    guard = QuotaGuard(database, config.limits, rates, seconds=seconds)

    def changed() -> None:
        keys.forget()
        directory.forget()

    verifiers: list[CredentialVerifier] = [keys]
    if config.jwt_issuer is not None:
        # What they load takes time, and few need it.
        from service.usecases.access.issuer_keys import IssuerKeys
        from service.usecases.access.jwt_verifier import JwtVerifier

        verifiers.append(JwtVerifier(config, IssuerKeys(config), directory))
    if config.tls_client_ca_file is not None:
        verifiers.append(CertificateVerifier(directory, config.mutual_tls_scopes))
    tenants = Tenants(database, changed)
    return Access(
        authentication=Authentication(
            verifiers,
            required=listening.is_authenticated(config),
            seconds=seconds,
            unverified=LocalAccess(keys, directory),
        ),
        service=AccessService(
            tenants,
            Keys(database, tenants, changed, max_keys=config.limits.max_keys),
            Quotas(database, tenants, config.limits, guard.forget),
            AuditLog(database, tenants),
            Erasures(database, tenants, journal, journals=config.erasure_journal is not None),
            KeptOutTexts(database),
            Sources(database, wake_ups, max_memory_bytes=config.limits.max_memory_bytes),
            pages,
        ),
        quotas=guard,
        quota_limit=QuotaLimit(guard, slots),
        slots=slots,
        run=partial(_run, keys, redis),
    )


async def _run(keys: KeyVerifier, redis: RedisLink | None) -> None:
    try:
        await keys.run()
    finally:
        if redis is not None:
            await redis.close()


def _redis(config: Config) -> RedisLink | None:
    if config.redis_url is None:
        return None
    url = config.redis_url.get_secret_value()
    # A call waits for it.
    seconds = min(config.redis_timeout_seconds, QUOTA_SECONDS)
    return RedisLink(url, cluster=config.redis_cluster, timeout_seconds=seconds)
