"""The proto keeps the rules of the API (docs/decisions/0077)."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.api import field_behavior_pb2
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from palimpsest.v1 import session_service_pb2
from service.domain.values.errors import InvalidInput
from service.rpc.interceptors.validation import validate
from tests import ROOT, proto

V1 = proto.PROTO / "palimpsest/v1"
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


@pytest.fixture(scope="module")
def files() -> list[FileDescriptorProto]:
    with tempfile.TemporaryDirectory() as name:
        image = proto.image(Path(name) / "image.binpb").read_bytes()
    every = descriptor_pb2.FileDescriptorSet.FromString(image).file
    return [one for one in every if one.package == "palimpsest.v1"]


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
    lint = [BUF, "lint", ".", "--path", "proto/palimpsest"]
    subprocess.run(lint, cwd=ROOT, check=True, timeout=200)
    command = [BUF, "format", "--diff", "--exit-code", ".", "--path", str(V1)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=200)


@pytest.mark.parametrize("text", IDS)
def test_ids_are_checked(text: str) -> None:
    request = session_service_pb2.GetSessionRequest(session=text)
    if IDS[text]:
        validate(request)
        return
    with pytest.raises(InvalidInput, match=r"^session"):
        validate(request)


def test_what_is_wrong_with_an_id_is_said_in_words() -> None:
    with pytest.raises(InvalidInput, match="session: must be printable, without a slash"):
        validate(session_service_pb2.GetSessionRequest(session="a/b"))
    with pytest.raises(InvalidInput, match="session: must not begin or end with a blank"):
        validate(session_service_pb2.GetSessionRequest(session=" a"))


def test_each_field_says_how_it_behaves(files: list[FileDescriptorProto]) -> None:
    for name, message in messages(files):
        for field in message.field:
            assert behaviors(field), f"{name}.{field.name}"
            assert field.type not in UNSIGNED, f"{name}.{field.name} is unsigned"


def test_what_names_a_resource_has_the_one_rule(files: list[FileDescriptorProto]) -> None:
    checked = 0
    source = {one.name: one.read_text() for one in V1.rglob("*.proto")}
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
        # The response would be stored, and with it the secret.
        response = requests.get(method.output_type.split(".")[-1], descriptor_pb2.DescriptorProto())
        makes_secret = any(one.options.debug_redact for one in response.field)
        if not streams and not makes_secret:
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
