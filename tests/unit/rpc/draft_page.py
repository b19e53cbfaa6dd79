"""Runs the examples of the page on version 1 against the draft: `draft_page.py GENERATED PAGE`.

It runs in a process of its own, since the proto of today has messages of the same names. A server
checks each request by the draft's rules and replies with empty messages.
"""

import json
import re
import sys
import types
from collections.abc import Callable, Iterator
from concurrent import futures
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import protovalidate
from google.protobuf import json_format, symbol_database
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

ADDRESS = "localhost:50051"
GRPCURL = re.compile(
    r"-d '(\{.*?\})' +(?:\\\n +)?" + ADDRESS + r" palimpsest\.v1\.(\w+)/(\w+)", re.S
)
SERVICES = ("session", "memory", "tree", "state", "answer", "operation", "billing")


def services(generated: Path) -> dict[str, ServiceDescriptor]:
    """Imports the draft in place of the proto of today."""
    package = types.ModuleType("palimpsest")
    package.__path__ = [str(generated / "palimpsest")]
    sys.modules["palimpsest"] = package
    found = {}
    for name in SERVICES:
        module = import_module(f"palimpsest.v1.{name}_service_pb2")
        found.update(module.DESCRIPTOR.services_by_name)
    return found


def message(name: str) -> Any:
    """The class of a message."""
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


def main() -> None:
    """Runs all examples; prints the RPCs that they call, as JSON."""
    generated, page = Path(sys.argv[1]), Path(sys.argv[2]).read_text()
    found = services(generated)
    called = []
    for body, service, method in GRPCURL.findall(page):
        request = message(found[service].methods_by_name[method].input_type.full_name)()
        json_format.Parse(body, request)
        protovalidate.validate(request)
        called.append(method)
    program = "".join(re.findall(r"```python\n(.*?)```", page, re.S))
    server = grpc.server(futures.ThreadPoolExecutor(4))
    for service in found.values():
        handlers = {one.name: handler(one) for one in service.methods if not one.client_streaming}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service.full_name, handlers),)
        )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    program = program.replace(ADDRESS, f"127.0.0.1:{port}")
    # Ids that a server would give.
    program = program.replace("=appended.read_token", '="token"').replace("=operation.id", '="id"')
    exec(compile(program, str(sys.argv[2]), "exec"), {})
    server.stop(None)
    print(json.dumps(called))


if __name__ == "__main__":
    main()
