"""Generates, lints and compares the proto: `python -m tests.proto generate|check`.

protoc comes from grpcio-tools and buf from buf-bin, so no network is needed. What the
proto imports from others is in third_party/. The code for Go needs the plugins that
`make setup-ci` builds; without them it stays as it is, and `make test-clients` compares it.
"""

import json
import os
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from tests import ROOT

PROTO = ROOT / "proto"
#: The accepted form of the proto, as a descriptor set: what `buf breaking`
#: compares with. It moves on only when the comparison passed.
BASELINE = PROTO / "baseline.binpb"
RULES = "buf/validate/validate.proto"
#: The plugins that write Go, and the folder of what they write.
GO_PLUGINS = ROOT / ".cache/go"
GO_CLIENT = ROOT / "clients/go"
#: Standard methods return the resource itself (AIP-131 to 135), so that replies are shared and
#: are not named after their RPC. Requests still are.
NOT_LINTED = ["RPC_REQUEST_RESPONSE_UNIQUE", "RPC_RESPONSE_STANDARD_NAME"]
BUF_LINT = {"version": "v2", "lint": {"use": ["STANDARD"], "except": NOT_LINTED}}
BUF_BREAKING = {"version": "v2", "breaking": {"use": ["FILE"]}}


def sources() -> list[str]:
    """Our proto files, as protoc names them."""
    return sorted(str(p.relative_to(PROTO)) for p in (PROTO / "palimpsest").rglob("*.proto"))


def _protoc(*arguments: str) -> None:
    include = str(resources.files("grpc_tools") / "_proto")
    bin_folder = Path(sys.executable).parent
    command = [
        "protoc",
        f"--proto_path={PROTO}",
        f"--proto_path={ROOT / 'third_party'}",
        f"--proto_path={include}",
        f"--plugin=protoc-gen-mypy={bin_folder / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={bin_folder / 'protoc-gen-mypy_grpc'}",
        *arguments,
    ]
    if protoc.main(command) != 0:
        raise SystemExit("protoc failed; its message is above")


def generate(target: Path) -> None:
    """Writes the Python code of every proto file below `target`."""
    # google.api comes from googleapis-common-protos: two copies in one process fail.
    _protoc(f"--python_out={target}", f"--mypy_out=quiet:{target}", RULES)
    _protoc(
        f"--python_out={target}",
        f"--grpc_python_out={target}",
        f"--mypy_out=quiet:{target}",
        f"--mypy_grpc_out=quiet:{target}",
        *sources(),
    )


def generate_go(target: Path) -> bool:
    """Writes the code for Go below `target`; False where its plugins are missing."""
    if not (GO_PLUGINS / "protoc-gen-go-grpc").exists():
        return False
    template = GO_CLIENT / "buf.gen.yaml"
    subprocess.run(
        [Path(sys.executable).parent / "buf", "generate", "--template", template, "-o", target],
        cwd=ROOT,
        env={**os.environ, "PATH": os.pathsep.join([str(GO_PLUGINS), os.environ["PATH"]])},
        check=True,
    )
    return True


def stale_go() -> list[str]:
    """Returns the files of the Go client that the proto generates otherwise.

    Empty where the plugins are missing.
    """
    with tempfile.TemporaryDirectory() as name:
        if not generate_go(Path(name)):
            return []
        fresh = {one.name: one.read_text() for one in Path(name).rglob("*.pb.go")}
    kept = {one.name: one.read_text() for one in GO_CLIENT.rglob("*.pb.go")}
    return sorted(one for one in {*fresh, *kept} if fresh.get(one) != kept.get(one))


def image(path: Path) -> Path:
    """Writes the proto with all that it imports to `path`, as a descriptor set."""
    _protoc(
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
        described = image(Path(name) / "image.binpb")
        return _buf("lint", str(described), "--path", "palimpsest", config=BUF_LINT)


def breaking() -> int:
    """Runs `buf breaking` against the accepted form; 0 when compatible."""
    with tempfile.TemporaryDirectory() as name:
        described = image(Path(name) / "image.binpb")
        return _buf(
            "breaking",
            str(described),
            "--against",
            str(BASELINE),
            "--path",
            "palimpsest",
            config=BUF_BREAKING,
        )


def accept() -> None:
    """Makes today's proto the accepted form (without source positions)."""
    accepted = descriptor_pb2.FileDescriptorSet()
    with tempfile.TemporaryDirectory() as name:
        accepted.ParseFromString(image(Path(name) / "image.binpb").read_bytes())
    for file in accepted.file:
        file.ClearField("source_code_info")
    BASELINE.write_bytes(accepted.SerializeToString(deterministic=True))


def main() -> None:
    """The command line; see the module's docstring."""
    if sys.argv[1:] != ["generate"]:
        raise SystemExit("usage: python -m tests.proto generate")
    if lint() != 0:
        raise SystemExit("buf lint found faults; they are above")
    if BASELINE.exists() and breaking() != 0:
        raise SystemExit("the proto breaks clients of the accepted form; see above")
    generate(PROTO)
    if not generate_go(GO_CLIENT):
        print("the Go client is unchanged: `make setup-ci` installs what generates it")
    accept()
    # It imports what was generated just now.
    subprocess.run([sys.executable, "-m", "tests.openapi"], check=True)


if __name__ == "__main__":
    main()
