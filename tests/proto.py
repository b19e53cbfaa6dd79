"""Generates, lints and compares the proto: `python -m tests.proto generate|check`.

protoc comes from grpcio-tools and buf from buf-bin, so no network is needed.
The rules' own file, buf/validate/validate.proto, comes out of the protovalidate
package, which ships it as a descriptor only.
"""

import json
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

from google.protobuf import (
    descriptor_pb2,
    duration_pb2,
    field_mask_pb2,
    timestamp_pb2,
)
from grpc_tools import protoc
from protovalidate._gen.buf.validate import validate_pb

from tests import ROOT

PROTO = ROOT / "proto"
#: The accepted form of the proto, as a descriptor set: what `buf breaking`
#: compares with. It moves on only when the comparison passed.
BASELINE = PROTO / "baseline.binpb"
RULES = "buf/validate/validate.proto"
BUF_LINT = {"version": "v2", "lint": {"use": ["STANDARD"]}}
BUF_BREAKING = {"version": "v2", "breaking": {"use": ["FILE"]}}


def sources() -> list[str]:
    """Our proto files, as protoc names them."""
    return sorted(str(p.relative_to(PROTO)) for p in (PROTO / "palimpsest").rglob("*.proto"))


def _rules_descriptor(folder: Path) -> Path:
    files = descriptor_pb2.FileDescriptorSet()
    for module in (descriptor_pb2, duration_pb2, field_mask_pb2, timestamp_pb2):
        module.DESCRIPTOR.CopyToProto(files.file.add())
    files.file.add().ParseFromString(validate_pb.desc().proto.to_binary())
    path = folder / "rules.binpb"
    path.write_bytes(files.SerializeToString(deterministic=True))
    return path


def _protoc(rules: Path, *arguments: str) -> None:
    include = str(resources.files("grpc_tools") / "_proto")
    bin_folder = Path(sys.executable).parent
    command = [
        "protoc",
        f"--descriptor_set_in={rules}",
        f"--proto_path={PROTO}",
        f"--proto_path={include}",
        f"--plugin=protoc-gen-mypy={bin_folder / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={bin_folder / 'protoc-gen-mypy_grpc'}",
        *arguments,
    ]
    if protoc.main(command) != 0:
        raise SystemExit("protoc failed; its message is above")


def generate(target: Path) -> None:
    """Writes the Python code of every proto file below `target`."""
    with tempfile.TemporaryDirectory() as name:
        rules = _rules_descriptor(Path(name))
        _protoc(rules, f"--python_out={target}", f"--mypy_out=quiet:{target}", RULES)
        _protoc(
            rules,
            f"--python_out={target}",
            f"--grpc_python_out={target}",
            f"--mypy_out=quiet:{target}",
            f"--mypy_grpc_out=quiet:{target}",
            *sources(),
        )


def _image(path: Path) -> Path:
    with tempfile.TemporaryDirectory() as name:
        rules = _rules_descriptor(Path(name))
        _protoc(
            rules,
            "--include_imports",
            "--include_source_info",
            f"--descriptor_set_out={path}",
            *sources(),
        )
    return path


def _buf(*arguments: str, config: object) -> int:
    buf = Path(sys.executable).parent / "buf"
    command = [str(buf), *arguments, "--config", json.dumps(config)]
    return subprocess.run(command, check=False).returncode


def lint() -> int:
    """Runs `buf lint`; 0 when the proto is clean."""
    with tempfile.TemporaryDirectory() as name:
        image = _image(Path(name) / "image.binpb")
        return _buf("lint", str(image), "--path", "palimpsest", config=BUF_LINT)


def breaking() -> int:
    """Runs `buf breaking` against the accepted form; 0 when compatible."""
    with tempfile.TemporaryDirectory() as name:
        image = _image(Path(name) / "image.binpb")
        return _buf(
            "breaking",
            str(image),
            "--against",
            str(BASELINE),
            "--path",
            "palimpsest",
            config=BUF_BREAKING,
        )


def accept() -> None:
    """Makes today's proto the accepted form (without source positions)."""
    image = descriptor_pb2.FileDescriptorSet()
    image.ParseFromString(_image(Path(tempfile.mkdtemp()) / "image.binpb").read_bytes())
    for file in image.file:
        file.ClearField("source_code_info")
    BASELINE.write_bytes(image.SerializeToString(deterministic=True))


def main() -> None:
    """The command line; see the module's docstring."""
    if sys.argv[1:] != ["generate"]:
        raise SystemExit("usage: python -m tests.proto generate")
    if lint() != 0:
        raise SystemExit("buf lint found faults; they are above")
    if BASELINE.exists() and breaking() != 0:
        raise SystemExit("the proto breaks clients of the accepted form; see above")
    generate(PROTO)
    accept()


if __name__ == "__main__":
    main()
