"""The examples of the page on the API are requests that its rules allow.

A server checks each by the rules and replies with empty messages.
"""

import re
from collections.abc import Callable, Iterator
from concurrent import futures
from importlib import import_module
from typing import Any

import grpc
import protovalidate
from google.protobuf import json_format, symbol_database
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from tests import ROOT

ADDRESS = "localhost:50051"
GRPCURL = re.compile(
    r"-d '(\{.*?\})' +(?:\\\n +)?" + ADDRESS + r" palimpsest\.v1\.(\w+)/(\w+)", re.S
)
SERVICES = ("session", "memory", "tree", "state", "answer", "operation", "billing")


def services() -> dict[str, ServiceDescriptor]:
    found: dict[str, ServiceDescriptor] = {}
    for name in SERVICES:
        module = import_module(f"palimpsest.v1.{name}_service_pb2")
        found.update(module.DESCRIPTOR.services_by_name)
    return found


def message(name: str) -> Any:
    return symbol_database.Default().GetSymbol(name)


def handler(method: MethodDescriptor) -> "grpc.RpcMethodHandler[Any, Any]":
    """Checks requests, and replies with nothing."""

    def reply(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            protovalidate.validate(request)
        except protovalidate.ValidationError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return message(method.output_type.full_name)()

    def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield reply(request, context)

    make: Callable[..., grpc.RpcMethodHandler[Any, Any]] = grpc.unary_unary_rpc_method_handler
    behavior: Callable[..., Any] = reply
    if method.server_streaming:
        make, behavior = grpc.unary_stream_rpc_method_handler, stream
    return make(
        behavior,
        request_deserializer=message(method.input_type.full_name).FromString,
        response_serializer=lambda one: one.SerializeToString(),
    )


def test_the_examples_are_requests_of_the_api() -> None:
    page = (ROOT / "draft/api.md").read_text()
    found = services()
    called = []
    for body, service, method in GRPCURL.findall(page):
        request = message(found[service].methods_by_name[method].input_type.full_name)()
        json_format.Parse(body, request)
        protovalidate.validate(request)
        called.append(method)
    assert len(called) == page.count("grpcurl -plaintext"), "each was checked"
    program = "".join(re.findall(r"```python\n(.*?)```", page, re.S))
    server = grpc.server(futures.ThreadPoolExecutor(4))
    for one in found.values():
        handlers = {rpc.name: handler(rpc) for rpc in one.methods if not rpc.client_streaming}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(one.full_name, handlers),)
        )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    program = program.replace(ADDRESS, f"127.0.0.1:{port}")
    # Ids that a server would give.
    program = program.replace("=appended.read_token", '="token"').replace("=operation.id", '="id"')
    try:
        exec(compile(program, "api.md", "exec"), {})
    finally:
        server.stop(None)
    for method in called:
        assert f".{method}(" in page, f"{method} is shown in Python as well"
