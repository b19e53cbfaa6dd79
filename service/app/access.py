"""Wires what verifies the clients of an API server, and what administers them."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from service.rpc.access_service import AccessService
from service.rpc.interceptors.authentication import Authentication
from service.rpc.pages import Pages
from service.settings import listening
from service.settings.config import Config
from service.usecases.access.audit_log import AuditLog
from service.usecases.access.key_verifier import KeyVerifier
from service.usecases.access.keys import Keys
from service.usecases.access.tenants import Tenants
from storage.engine.database import Database


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """What an API server needs."""

    authentication: Authentication
    service: AccessService
    #: Runs as long as the server does.
    run: Callable[[], Coroutine[Any, Any, None]]


def access_of(config: Config, database: Database, pages: Pages) -> Access:
    """Returns what verifies and administers the clients of one server."""
    verifier = KeyVerifier(database, seconds=config.key_cache_seconds)
    tenants = Tenants(database, verifier.forget)
    keys = Keys(database, tenants, verifier.forget, max_keys=config.limits.max_keys)
    return Access(
        authentication=Authentication([verifier], required=listening.is_authenticated(config)),
        service=AccessService(tenants, keys, AuditLog(database, tenants), pages),
        run=verifier.run,
    )
