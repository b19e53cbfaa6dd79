"""Returns the first result when a request with an id comes again."""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import Message

from service.domain.log.appending import ClientRequest
from service.domain.values.tenancy import session_key
from service.rpc.interceptors.base import Around, Context, subject_of
from service.rpc.interceptors.tenancy import current_identity, current_tenant
from service.usecases.log import idempotency
from storage.engine.database import Database

T = TypeVar("T")
M = TypeVar("M", bound=Message)

#: It stores its ids itself, as long as its chunks.
_OF_THE_LOG = {"Append"}
#: Their results outlive the session, or their target may belong to no session.
_OF_THE_TENANT = {"CreateSession", "DeleteSession", "DeleteMemory", "DeleteAnswer", "DeleteBudget"}


class Idempotency(Around):
    """Surrounds the unary methods whose requests have a `request_id`."""

    def __init__(self, database: Database, *, max_bytes: int) -> None:
        """`max_bytes`: what a response may have to be kept."""
        super().__init__()
        self._database = database
        self._max_bytes = max_bytes

    def wrap(self, method: str, handler: Any) -> Any:
        """Wraps the methods whose results are kept."""
        if not method.startswith("/palimpsest.") or getattr(handler, "unary_unary", None) is None:
            return handler
        described = descriptor_pool.Default().FindMethodByName(method.strip("/").replace("/", "."))
        if described.name in _OF_THE_LOG or "request_id" not in described.input_type.fields_by_name:
            return handler
        answer = handler.unary_unary
        response_class = message_factory.GetMessageClass(described.output_type)

        async def unary(request: Any, context: Context) -> Any:
            if not request.request_id:
                return await answer(request, context)
            done = await idempotency.run(
                self._database,
                current_tenant(),
                identified(described.name, request),
                lambda: answer(request, context),
                max_bytes=self._max_bytes,
            )
            return response_class.FromString(done) if isinstance(done, bytes) else done

        return grpc.unary_unary_rpc_method_handler(
            unary,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def identified(method: str, request: Any) -> ClientRequest:
    """Returns what identifies a request.

    Its digest does not depend on the order of maps. Fields that this server does not know count:
    a server that knows them makes the same digest.
    """
    content = type(request)()
    content.CopyFrom(request)
    content.ClearField("request_id")
    session = "" if method in _OF_THE_TENANT else subject_of(request).session
    if not session:
        # Results of other sessions are not shown to clients that are limited to some.
        session = f"\0{prefix}" if (prefix := current_identity().session_prefix) else ""
    return ClientRequest(
        session_key=session_key(current_tenant(), session),
        request_id=request.request_id,
        method=method,
        digest=hashlib.sha256(content.SerializeToString(deterministic=True)).digest(),
    )


async def reply(work: Awaitable[T], response: Callable[[T], M]) -> M:
    """Returns the response to what `work` results in, and has it stored with the request's id.

    `work` ends with `service.usecases.log.idempotency.store_result`.
    """
    idempotency.serialize_with(lambda result: response(result).SerializeToString())
    return response(await work)
