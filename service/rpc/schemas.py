"""SchemaService."""

from palimpsest.v1alpha1 import schemas_pb2, schemas_pb2_grpc
from service.llm.gateway.allowed import AllowedModels
from service.rpc.convert import v1alpha1 as convert
from service.rpc.deadlines import deadline_of
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.operations import message as operation_message
from service.usecases.prism.schemas import Drafted, SchemaRequest, Schemas


class SchemaService(schemas_pb2_grpc.SchemaServiceServicer):
    """See schemas.proto."""

    def __init__(self, schemas: Schemas, models: AllowedModels) -> None:
        self._schemas = schemas
        self._models = models

    async def GenerateSchema(  # noqa: N802 - named by the proto
        self, request: schemas_pb2.GenerateSchemaRequest, context: Context
    ) -> schemas_pb2.GenerateSchemaResponse:
        """Has a model write a schema."""
        self._models.check(request.model, "model")
        wanted = SchemaRequest(
            session=request.session,
            domain=request.domain,
            example_query=request.example_query,
            model=request.model,
        )
        return await reply(
            self._schemas.generate(current_tenant(), wanted, deadline=deadline_of(context)),
            lambda done: schemas_pb2.GenerateSchemaResponse(
                draft=_draft(done[0]), operation=operation_message(done[1])
            ),
        )

    async def GetSchemaDraft(  # noqa: N802
        self, request: schemas_pb2.GetSchemaDraftRequest, context: Context
    ) -> schemas_pb2.GetSchemaDraftResponse:
        """Reads a stored draft."""
        drafted = await self._schemas.get(
            current_tenant(), request.session, convert.uuid(request.draft_id)
        )
        return schemas_pb2.GetSchemaDraftResponse(draft=_draft(drafted))


_STATUS = {
    "pending": schemas_pb2.SchemaDraft.STATUS_PENDING,
    "complete": schemas_pb2.SchemaDraft.STATUS_COMPLETE,
    "failed": schemas_pb2.SchemaDraft.STATUS_FAILED,
}


def _draft(drafted: Drafted) -> schemas_pb2.SchemaDraft:
    stored = drafted.draft
    return schemas_pb2.SchemaDraft(
        draft_id=str(stored.draft_id),
        session=stored.session_name,
        domain=stored.domain,
        example_query=stored.example_query,
        status=_STATUS[stored.status],
        schema_source=stored.source,
        model=stored.model,
        attempts=stored.replies,
        failure=stored.failure,
        usage=convert.usage(drafted.usage),
        create_time=convert.timestamp(stored.created_at),
    )
