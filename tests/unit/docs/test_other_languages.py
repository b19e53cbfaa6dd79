"""The proto can be generated from the repository as it is, for languages without a client."""

import subprocess
import sys
from importlib import resources
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from protovalidate._gen.buf.validate import validate_pb

from service.rpc.errors import DOMAIN
from tests import ROOT
from tests.support.guides import section

PAGE = section("api", "Other languages")


def files_of(image: Path) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    found = descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes())
    return {one.name: one for one in found.file}


def test_buf_finds_all_that_it_needs(tmp_path: Path) -> None:
    image = tmp_path / "image.binpb"
    buf = Path(sys.executable).parent / "buf"
    subprocess.run([buf, "build", ".", "-o", image], cwd=ROOT, check=True, timeout=200)
    files = files_of(image)
    log = "palimpsest/v1/session_service.proto"
    assert {log, "google/rpc/error_details.proto"} <= set(files)
    assert files[log].source_code_info.location, "with the comments"


def test_so_does_protoc(tmp_path: Path) -> None:
    image = tmp_path / "image.binpb"
    sources = [str(one) for one in (ROOT / "proto/palimpsest").rglob("*.proto")]
    command = [
        "protoc",
        f"-I{ROOT / 'proto'}",
        f"-I{ROOT / 'third_party'}",
        f"-I{resources.files('grpc_tools') / '_proto'}",
        "--include_imports",
        f"--descriptor_set_out={image}",
    ]
    assert protoc.main([*command, *sources]) == 0
    rules = files_of(image)["buf/validate/validate.proto"]
    checked = descriptor_pb2.FileDescriptorProto.FromString(validate_pb.desc().proto.to_binary())
    for one in (rules, checked):
        # Package names for languages; the library's own copy has none.
        one.ClearField("options")
        one.ClearField("source_code_info")
    assert rules == checked, "the rules are those that the service checks by"


def test_the_page_names_what_is_there() -> None:
    assert f"`domain`: `{DOMAIN}`" in PAGE
    for name in ("buf/validate/validate.proto", "google/rpc/error_details.proto"):
        assert name in PAGE
        assert (ROOT / "third_party" / name).is_file()
    assert "protoc-gen-es" in (ROOT / "buf.gen.yaml").read_text()
