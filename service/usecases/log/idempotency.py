"""Idempotent requests: the result of a call is stored in the transaction of its effect.

`run` surrounds a call whose request has an id. The use case calls `store_result` in its last
transaction, just before the commit: the primary key of the request decides which of several
copies takes effect, and the others are rolled back and return the result of that one. Without
an id `store_result` sends nothing to the database.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from service.domain.log.appending import ClientRequest, refuse_other_content
from service.domain.values.errors import InvalidInput, PalimpsestError
from service.domain.values.reasons import Reason
from service.usecases.log import metrics
from service.usecases.log.metrics import Guard
from storage.engine.database import Database, Transaction
from storage.engine.errors import Busy, StorageError
from storage.log import requests

T = TypeVar("T")

#: How often a transaction is tried that deadlocks with others.
TRIES = 3


class Repeated(Exception):
    """Another call with the same request id was first; this one must have no effect."""


@dataclass(kw_only=True, slots=True)
class _OpenRequest:
    """The request of the call under way."""

    request: ClientRequest
    max_bytes: int
    #: Returns the serialized response to a result of the use case.
    serialize: Callable[[Any], bytes] | None = None
    is_stored: bool = False


_open: ContextVar[_OpenRequest | None] = ContextVar("palimpsest_request", default=None)


async def run(
    database: Database,
    tenant_id: UUID,
    request: ClientRequest,
    work: Callable[[], Awaitable[T]],
    *,
    max_bytes: int,
) -> T | bytes:
    """Runs `work`, unless the request was done before: then returns the serialized response.

    A response of more than `max_bytes` is refused before the commit, with InvalidInput. Raises
    AlreadyExists when the id was used for another request, and what `work` raises.
    """
    if (response := await _response(database, tenant_id, request)) is not None:
        return response
    opened = _OpenRequest(request=request, max_bytes=max_bytes)
    token = _open.set(opened)
    try:
        result = await work()
    except (PalimpsestError, StorageError, Repeated) as error:
        if opened.is_stored and _is_unjournalled(error):
            # It is done, but its caller must know that a restored backup would not repeat it yet.
            raise
        # A copy may have been committed meanwhile, or this one without its reply.
        if (response := await _response(database, tenant_id, request)) is None:
            raise
        return response
    finally:
        _open.reset(token)
    if not opened.is_stored:
        raise RuntimeError(f"{request.method} did not store the result of its request")
    return result


def _is_unjournalled(error: Exception) -> bool:
    return isinstance(error, PalimpsestError) and error.reason is Reason.ERASURE_JOURNAL_UNAVAILABLE


def serialize_with(serialize: Callable[[Any], bytes]) -> None:
    """Sets how the result of the call under way is stored, if its request has an id."""
    if (opened := _open.get()) is not None:
        opened.serialize = serialize


async def store_result(tx: Transaction, result: T) -> T:
    """Stores the result of the call under way, if its request has an id; returns it.

    For the last statement of a use case's last transaction. Raises Repeated, InvalidInput.
    """
    opened = _open.get()
    if opened is None:
        return result
    assert opened.serialize is not None, "the RPC says how its result is serialized"
    response = opened.serialize(result)
    if len(response) > opened.max_bytes:
        raise InvalidInput(
            Reason.FIELD_INVALID,
            f"request_id: the result has {len(response)} bytes; to be kept for a retry it may"
            f" have {opened.max_bytes}. Ask for less at once, or leave request_id out",
            field="request_id",
        )
    if not await requests.store_response(tx, opened.request, response):
        raise Repeated
    opened.is_stored = True
    return result


async def tried_again(
    database: Database, tenant_id: UUID, work: Callable[[Transaction], Awaitable[T]], *, name: str
) -> T:
    """Runs `work` in a transaction of its own, up to TRIES times while it is Busy."""
    for number in range(1, TRIES + 1):
        try:
            async with database.transaction(tenant_id, name=name) as tx:
                return await work(tx)
        except Busy:
            if number == TRIES:
                raise
    raise AssertionError("the last try returns or raises")


async def is_done(database: Database, tenant_id: UUID, key: UUID, request_id: str) -> bool:
    """Returns whether a request of this id was done in a session, be it with other content."""
    async with database.direct(tenant_id, name="requests") as direct:
        return await requests.read_response(direct, key, request_id) is not None


async def _response(database: Database, tenant_id: UUID, request: ClientRequest) -> bytes | None:
    """Returns the response of a request that was done; None when it was not."""
    async with database.direct(tenant_id, name="requests") as direct:
        stored = await requests.read_response(direct, request.session_key, request.request_id)
    if stored is None:
        return None
    refuse_other_content(
        request.request_id,
        (request.method, request.digest),
        done=(stored.method, stored.digest),
    )
    assert stored.response is not None, "only appends have none"
    metrics.kept(Guard.REQUEST)
    return stored.response
