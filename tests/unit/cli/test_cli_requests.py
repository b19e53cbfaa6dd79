"""Commands that create, change or delete something while the service is away for a moment."""

from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from typer.testing import CliRunner

from service.cli.commands import app


@dataclass
class Away(grpc.GenericRpcHandler):
    """A service that is away at the first try of each call; its replies are empty."""

    tries: list[tuple[str, str]] = field(default_factory=list)
    address: str = ""

    def service(self, handler_call_details: Any) -> Any:
        """Returns what handles a call."""
        method: str = handler_call_details.method
        name = method.strip("/").replace("/", ".")
        asked = descriptor_pool.Default().FindMethodByName(name).input_type
        read: Callable[[bytes], Any] = message_factory.GetMessageClass(asked).FromString

        def handle(request: bytes, context: Any) -> bytes:
            self.tries.append((name.rpartition(".")[2], read(request).request_id))
            if len(self.tries) == 1:
                context.abort(grpc.StatusCode.UNAVAILABLE, "back soon")
            return b""

        return grpc.unary_unary_rpc_method_handler(handle)


@pytest.fixture
def away() -> Iterator[Away]:
    made = Away()
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[made])
    made.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield made
    server.stop(None)


@pytest.mark.parametrize(
    ("command", "called"),
    [
        ("session create s", "CreateSession"),
        ("session delete s", "DeleteSession"),
        ("memory create prism m --schema {schema}", "CreateMemory"),
        ("memory create tree m", "CreateMemory"),
        ("memory create state m --task t", "CreateMemory"),
        ("memory delete m", "DeleteMemory"),
        ("budget delete total --session s", "DeleteBudget"),
    ],
)
def test_what_changes_something_is_tried_again_under_its_id(
    away: Away, tmp_path: Path, command: str, called: str
) -> None:
    schema = tmp_path / "schema.py"
    schema.write_text("class Notes:\n    topics: dict[str, str]\n")
    words = command.format(schema=schema).split()
    done = CliRunner().invoke(app, [*words, "--address", away.address])
    assert done.exit_code == 0, done.output
    (first, id), (second, again) = away.tries
    assert first == second == called
    assert id == again != ""
