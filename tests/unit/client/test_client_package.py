"""What the client's packages ask for is what they need: no less, and no more."""

import re
import subprocess
import sys
import tomllib

from tests import ROOT

#: Imports the client, whose process has none of what belongs to the server.
ALONE = """
import sys
for name in ("protovalidate", "cel", "service", "storage", "litellm", "pydantic", "psycopg"):
    sys.modules[name] = None
import palimpsest, palimpsest.sync
"""


def asked(folder: str) -> dict[str, str]:
    """Returns what a package asks for, and from which version on."""
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    matched = (re.match(r"([a-z-]+)[=>]=([\d.]+)", one) for one in project["dependencies"])
    return {one[1]: one[2] for one in matched if one is not None}


def test_the_floors_are_those_that_the_generated_code_checks() -> None:
    generated = ROOT / "proto/palimpsest/v1"
    (protobuf,) = {
        found[1]
        for path in generated.glob("*_pb2.py")
        if (found := re.search(r"# Protobuf Python Version: ([\d.]+)", path.read_text()))
    }
    (grpc,) = {
        found[1]
        for path in generated.glob("*_pb2_grpc.py")
        if (found := re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", path.read_text()))
    }
    floors = asked("proto")
    assert floors.pop("googleapis-common-protos")
    assert floors == {"grpcio": grpc, "protobuf": protobuf}


def test_the_oldest_libraries_that_are_tried_are_those_that_it_takes() -> None:
    lines = (ROOT / "requirements/oldest.in").read_text().splitlines()
    tried = dict(line.split("==") for line in lines if "==" in line)
    wanted = {**asked("proto"), **asked("clients/python")}
    assert wanted.pop("palimpsest-proto")
    assert tried == wanted


def test_the_client_needs_nothing_of_the_server() -> None:
    subprocess.run([sys.executable, "-c", ALONE], check=True, timeout=200)


def test_both_packages_are_named_where_one_is_installed() -> None:
    for page, top in (("README.md", "."), ("clients/python/README.md", "../palimpsest")):
        line = f"pip install {top}/proto {top}/clients/python "
        assert line in (ROOT / page).read_text(), page
