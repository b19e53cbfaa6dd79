"""Version 1 of the API, drafted in draft/, is a proto that compiles, lints and keeps its rules.

This goes when the draft takes the place of proto/palimpsest/v1.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
from google.api import field_behavior_pb2  # type: ignore[import-untyped, unused-ignore]
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from grpc_tools import protoc

from tests import ROOT

DRAFT = ROOT / "draft/proto"
BUF = str(Path(sys.executable).parent / "buf")
READS = descriptor_pb2.MethodOptions.NO_SIDE_EFFECTS
UNSIGNED = {
    FieldDescriptorProto.TYPE_UINT32,
    FieldDescriptorProto.TYPE_UINT64,
    FieldDescriptorProto.TYPE_FIXED32,
    FieldDescriptorProto.TYPE_FIXED64,
}
#: Values of an id, and whether it may have them.
IDS = {
    "auth0|5f7c": True,
    "user:42": True,
    "josé@example.org": True,
    "two words": True,
    "x" * 256: True,
    "x" * 257: False,
    "é" * 129: False,
    "a/b": False,
    " a": False,
    "a\u00a0": False,
    "a\n": False,
    "a\0b": False,
    "a\u200bb": False,
    "a\u202eb": False,
    "a\u200cb": True,
    ".": False,
    "..": False,
    "...": True,
    "": False,
}
CHECK = """
import json, sys, types

# Not the client, which imports the proto of today.
sys.modules["palimpsest"] = types.ModuleType("palimpsest")
sys.modules["palimpsest"].__path__ = [sys.argv[1]]
from palimpsest.v1 import session_service_pb2
from service.domain.values.errors import InvalidInput
from service.rpc.interceptors.validation import validate

said = {}
for text in json.load(sys.stdin):
    try:
        validate(session_service_pb2.GetSessionRequest(session=text))
        said[text] = ""
    except InvalidInput as error:
        said[text] = str(error)
print(json.dumps(said))
"""


def compile_draft(*arguments: str) -> None:
    command = [
        "protoc",
        f"-I{DRAFT}",
        f"-I{ROOT / 'third_party'}",
        f"-I{resources.files('grpc_tools') / '_proto'}",
        *arguments,
        *sorted(str(one) for one in DRAFT.rglob("*.proto")),
    ]
    assert protoc.main(command) == 0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[FileDescriptorProto]:
    image = tmp_path_factory.mktemp("draft") / "image.binpb"
    compile_draft(f"--descriptor_set_out={image}", "--include_source_info")
    return list(descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes()).file)


def messages(
    files: list[FileDescriptorProto],
) -> Iterator[tuple[str, descriptor_pb2.DescriptorProto]]:
    def within(
        prefix: str, found: descriptor_pb2.DescriptorProto
    ) -> Iterator[tuple[str, descriptor_pb2.DescriptorProto]]:
        if not found.options.map_entry:
            yield prefix + found.name, found
            for one in found.nested_type:
                yield from within(f"{prefix}{found.name}.", one)

    for file in files:
        for top in file.message_type:
            yield from within("", top)


def methods(
    files: list[FileDescriptorProto],
) -> Iterator[tuple[str, descriptor_pb2.MethodDescriptorProto]]:
    for file in files:
        for service in file.service:
            for method in service.method:
                yield f"{service.name}.{method.name}", method


def behaviors(field: FieldDescriptorProto) -> list[int]:
    return list(field.options.Extensions[field_behavior_pb2.field_behavior])


def test_buf_finds_no_fault() -> None:
    config = ["--config", "draft/buf.yaml", "--path", "draft/proto/palimpsest"]
    subprocess.run([BUF, "lint", ".", *config], cwd=ROOT, check=True, timeout=200)
    command = [BUF, "format", "--diff", "--exit-code", "draft/proto"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=200)


def test_ids_are_checked_where_the_server_checks_requests(tmp_path: Path) -> None:
    compile_draft(f"--python_out={tmp_path}")
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(tmp_path / "palimpsest")],
        input=json.dumps(list(IDS)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert {text: message == "" for text, message in said.items()} == IDS
    assert said["a/b"].startswith("session: must be printable, without a slash")
    assert said[" a"] == "session: must not begin or end with a blank, nor be '.' or '..'"


def test_each_field_says_how_it_behaves(files: list[FileDescriptorProto]) -> None:
    for name, message in messages(files):
        for field in message.field:
            assert behaviors(field), f"{name}.{field.name}"
            assert field.type not in UNSIGNED, f"{name}.{field.name} is unsigned"


def test_what_names_a_resource_has_the_one_rule(files: list[FileDescriptorProto]) -> None:
    checked = 0
    source = {one.name: one.read_text() for one in DRAFT.rglob("*.proto")}
    for name, text in source.items():
        for field in re.finditer(
            r"^ +string (session|memory|thread|source) = \d+ (.*?);", text, re.M | re.S
        ):
            if "OUTPUT_ONLY" not in field[2]:
                assert "(palimpsest.v1.id) = true" in field[2], f"{name}: {field[0]}"
                checked += 1
    assert checked > 60
    written = [name for name, text in source.items() if '"string.id.characters"' in text]
    assert written == ["rules.proto"], "the rule is written once"


def test_writes_take_a_request_id_and_reads_say_that_they_are(
    files: list[FileDescriptorProto],
) -> None:
    requests = dict(messages(files))
    for name, method in methods(files):
        fields = {one.name for one in requests[method.input_type.split(".")[-1]].field}
        streams = method.client_streaming or method.server_streaming
        reads = method.options.idempotency_level == READS
        if not streams:
            assert ("request_id" in fields) != reads, name
        if name.split(".")[1].startswith(("Get", "List", "Search", "Check", "Diff")):
            assert reads, name


def test_lists_have_pages(files: list[FileDescriptorProto]) -> None:
    found = dict(messages(files))
    for name, method in methods(files):
        request = {one.name for one in found[method.input_type.split(".")[-1]].field}
        if name.split(".")[1].startswith("List"):
            response = {one.name for one in found[method.output_type.split(".")[-1]].field}
            assert {"page_size", "page_token"} <= request, name
            assert "next_page_token" in response, name


def test_everything_is_documented(files: list[FileDescriptorProto]) -> None:
    for file in files:
        described = {
            tuple(one.path): one.leading_comments for one in file.source_code_info.location
        }
        for s, service in enumerate(file.service):
            assert described[6, s], service.name
            for m, method in enumerate(service.method):
                comment = described[6, s, 2, m]
                assert "Guarantees: " in comment, method.name
                assert "Safety: " in comment, method.name


def test_the_mapping_names_what_was_and_what_is(files: list[FileDescriptorProto]) -> None:
    mapping = (ROOT / "draft/MAPPING.md").read_text()
    before = descriptor_pb2.FileDescriptorSet.FromString(
        (ROOT / "proto/baseline.binpb").read_bytes()
    )
    old = [one for one in before.file if one.package == "palimpsest.v1"]
    for group in (old, files):
        for name, _ in methods(group):
            assert f"| {name} |" in mapping, name
        for name, _ in messages(group):
            if not name.endswith(("Request", "Response")):
                assert re.search(rf"\b{name.split('.')[-1]}\b", mapping), name
    counts = (
        sum(len(one.service) for one in files),
        len(list(methods(files))),
        len(list(messages(files))),
    )
    for kind, count in zip(("services", "RPCs", "messages"), counts, strict=True):
        assert re.search(rf"\| {kind} \| \d+ \| {count} \|", mapping), f"{count} {kind}"


def test_the_examples_of_the_page_are_requests_of_the_draft(tmp_path: Path) -> None:
    compile_draft(f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}")
    page = ROOT / "draft/api.md"
    done = subprocess.run(
        [sys.executable, "tests/unit/rpc/draft_page.py", str(tmp_path), str(page)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    called = json.loads(done.stdout.splitlines()[-1])
    assert len(called) == page.read_text().count("grpcurl -plaintext"), "each was checked"
    for method in called:
        assert f".{method}(" in page.read_text(), f"{method} is shown in Python as well"
