"""docs/guides/api.md: its requests are the API's, and its program runs as it is written."""

import re
import subprocess
import sys
from importlib import import_module
from typing import Any

import protovalidate
from google.protobuf import json_format, symbol_database
from google.protobuf.descriptor import ServiceDescriptor

from tests import ROOT
from tests.support.guides import section
from tests.support.harness import Servers, api, worker

PAGE = section("api", "The API in ten minutes")
ADDRESS = "localhost:50051"
GRPCURL = re.compile(
    r"-d '(\{.*?\})' +(?:\\\n +)?" + ADDRESS + r" palimpsest\.v1\.(\w+)/(\w+)", re.S
)
SERVICES = ("session", "memory", "tree", "state", "answer", "operation", "billing")


def test_each_grpcurl_sends_a_request_of_the_api_and_is_shown_in_python() -> None:
    found: dict[str, ServiceDescriptor] = {}
    for name in SERVICES:
        module = import_module(f"palimpsest.v1.{name}_service_pb2")
        found.update(module.DESCRIPTOR.services_by_name)
    called = GRPCURL.findall(PAGE)
    assert len(called) == PAGE.count("grpcurl -plaintext"), "each was checked"
    for body, service, method in called:
        name = found[service].methods_by_name[method].input_type.full_name
        request: Any = symbol_database.Default().GetSymbol(name)()
        json_format.Parse(body, request)
        protovalidate.validate(request)
        assert f".{method}(" in PAGE, f"{method} is shown in Python as well"


def test_the_program_runs(servers: Servers) -> None:
    program = "".join(re.findall(r"```python\n(.*?)```", PAGE, re.S))
    url = servers.new_database()
    with api(url) as (_, address), worker(url, **servers.redis_settings()):
        # The page's deadlines are for a machine that does nothing else.
        program = re.sub(r"timeout=\d+", "timeout=200", program.replace(ADDRESS, address))
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith("at position 1")
    assert "1 1 I am allergic to peanuts." in lines
    assert lines[-1] == "OPERATION_STATE_DONE"
