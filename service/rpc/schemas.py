"""SchemaService."""

from palimpsest.v1alpha1 import schemas_pb2, schemas_pb2_grpc
from service.domain.prism.schemas.tree import render
from service.domain.values.errors import SchemaInvalid
from service.rpc import specs
from service.rpc.interceptors.base import Context


class SchemaService(schemas_pb2_grpc.SchemaServiceServicer):
    """See schemas.proto."""

    async def CheckSchema(  # noqa: N802 - named by the proto
        self, request: schemas_pb2.CheckSchemaRequest, context: Context
    ) -> schemas_pb2.CheckSchemaResponse:
        """Checks a schema."""
        try:
            schema = specs.schema_of(request.schema_source, request.json_schema)
        except SchemaInvalid as error:
            # Here the fields stand in no spec.
            error.field = error.field.removeprefix("prism.")
            raise
        return schemas_pb2.CheckSchemaResponse(schema_source=render(schema))
