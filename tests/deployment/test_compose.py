"""deploy/compose as Docker Compose reads it, and each of its rules broken once."""

import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from tests import ROOT
from tests.deployment.chart import tool
from tests.deployment.compose_file import (
    ALL_FILES,
    FILES,
    NAMED,
    Deployment,
    program,
    wrong_command,
)

HERE = ROOT / "deploy" / "compose"


@pytest.fixture(scope="session")
def loader() -> Path:
    return Path(tool("composecheck"))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Yields the folder of the compose file in a copy of deploy/ without secrets."""
    unwanted = shutil.ignore_patterns("secrets", ".env")
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=unwanted)
    return tmp_path / "deploy" / "compose"


@pytest.mark.parametrize("files", [FILES, ALL_FILES[:2], ALL_FILES])
def test_compose_reads_the_files_and_nothing_is_wrong_with_them(
    loader: Path, files: tuple[str, ...]
) -> None:
    deployment = Deployment.load(loader, HERE, files, NAMED)
    assert deployment.faults() == []
    assert {one.name for one in deployment.ours} == {"migrate", "api", "worker", "executor"}
    for name in ("api", "worker"):
        assert deployment.services[name].raw["deploy"]["replicas"] == 2


def test_a_model_that_is_not_named_is_said(loader: Path) -> None:
    with pytest.raises(ValueError, match="says which model, as provider/name"):
        Deployment.load(loader, HERE, ALL_FILES)


def test_the_example_of_variables_has_those_that_are_read(loader: Path, copied: Path) -> None:
    given = [line.removeprefix("#") for line in (HERE / ".env.example").read_text().splitlines()]
    lines = [line for line in given if line.partition("=")[0].isupper() and "=" in line]
    names = {line.partition("=")[0] for line in lines}
    read = {
        part.partition("}")[0].partition(":")[0]
        for name in ALL_FILES
        for part in (HERE / name).read_text().split("${")[1:]
    }
    assert names - {"COMPOSE_FILE"} == read
    (copied / ".env").write_text("\n".join(lines))
    deployment = Deployment.load(loader, copied, ALL_FILES)
    assert deployment.faults() == []
    environment = deployment.services["worker"].environment
    assert environment["PALIMPSEST_MODEL_BASE_URL"] == "https://llm.example/v1"


#: A file, a part of it, what replaces that part, and the expected fault.
BROKEN = {
    "a key that is none": (
        "compose.yaml",
        "stop_grace_period: 170s",
        "stop_grace: 170s",
        "stop_grace",
    ),
    "a type": ("compose.yaml", "replicas: 2", "replicas: two", "replicas"),
    "a dependency": ("compose.yaml", "database: {condition", "databas: {condition", "databas"),
    "a network": ("compose.yaml", "networks: [edge, front]", "networks: [edges, front]", "edges"),
    "a secret that is none": ("compose.yaml", "secrets: [grafana_p", "secrets: [p", "password"),
    "a setting": (
        "compose.yaml",
        "PALIMPSEST_MODELS:",
        "PALIMPSEST_MODLES:",
        "MODLES is no setting",
    ),
    "a command": ("compose.yaml", "command: [serve]", "command: [server]", "no command server"),
    "an option": ("compose.yaml", "[executor, --socket,", "[executor, --sockets,", "--sockets"),
    "a file": ("compose.yaml", "./valkey.conf:", "./redis.conf:", "there is no redis.conf"),
    "a file that is written": ("compose.yaml", "otelcol.yaml:ro", "otelcol.yaml", "can write"),
    "an image": ("compose.yaml", "grafana:12.4.0", "grafana:latest", "latest is not pinned"),
    "a root that is written": (
        "compose.yaml",
        "read_only: true",
        "read_only: false",
        "root can be",
    ),
    "capabilities": ("compose.yaml", "cap_drop: [ALL]", "cap_drop: [KILL]", "has capabilities"),
    "privileges": ("compose.yaml", "no-new-privileges:true", "apparmor:x", "may gain privileges"),
    "a limit": ("compose.yaml", ", memory: 2g", "", "database: has no limit of memory"),
    "root": ("compose.yaml", 'user: "65532:65532"', 'user: "0:0"', "runs as root"),
    "too little time": (
        "compose.yaml",
        "period: 170s",
        "period: 150s",
        "executor: is killed before",
    ),
    "too little time for calls": (
        "compose.yaml",
        'STOP_SECONDS: "150"',
        'STOP_SECONDS: "100"',
        "executor: stops before a model call ends",
    ),
    "an open port": ("compose.yaml", '"127.0.0.1:${API', '"${API', "can be reached from other"),
    "the API's port": (
        "compose.yaml",
        "    command: [serve]",
        "    ports: ['127.0.0.1::1']\n    command: [serve]",
        "publishes a port",
    ),
    "a network that is open": (
        "compose.yaml",
        "front: {internal: true}",
        "front: {}",
        "front is not internal, and proxy",
    ),
    "a password": (
        "compose.yaml",
        "_DATABASE_URL_FILE: /run/secrets/database_url",
        "_DATABASE_URL: postgresql://a:b@c/d",
        "holds a password",
    ),
    "a key": (
        "compose.model.yaml",
        "_API_KEY_FILE: /run/secrets/model_api_key",
        "_API_KEY: sk-1",
        "holds a secret",
    ),
    "another's secret": (
        "compose.yaml",
        "/run/secrets/redis_url",
        "/run/secrets/grafana_password",
        "none of its secrets",
    ),
    "a secret too many": (
        "compose.yaml",
        "secrets: [migration_database_url]",
        "secrets: [migration_database_url, redis_url]",
        "redis_url is not used",
    ),
    "no migration": (
        "compose.yaml",
        "      migrate: {condition: service_completed_successfully}\n",
        "",
        "does not wait for migrate",
    ),
    "no probe": (
        "compose.yaml",
        "test: [CMD, python, -m, service.app.health, --kind, work]",
        "test: [CMD, 'true']",
        "has no healthcheck",
    ),
    "another's probe": ("compose.yaml", "--kind, work]", "--kind, serve]", "another process's"),
    "a short probe": ("compose.yaml", "timeout: 8s", "timeout: 5s", "too little time"),
    "another socket": (
        "compose.yaml",
        "SOCKET: /run/executor/e",
        "SOCKET: /run/executor/x",
        "executor's socket",
    ),
    "no socket": (
        "compose.yaml",
        "volumes: [executor:/run/executor]",
        "volumes: []",
        "does not share the executor",
    ),
    "a folder of all": (
        "compose.yaml",
        "palimpsest:mode=0700",
        "palimpsest:mode=0755",
        "no folder of its user alone",
    ),
    "the API elsewhere": (
        "compose.yaml",
        "LISTEN: 0.0.0.0:50051",
        "LISTEN: 0.0.0.0:50052",
        "does not lead to api:50052",
    ),
    "HTTP elsewhere": (
        "compose.yaml",
        "HTTP_LISTEN: 0.0.0.0:50080",
        "HTTP_LISTEN: 0.0.0.0:50081",
        "does not lead to api:50081",
    ),
    "metrics elsewhere": (
        "compose.yaml",
        "0.0.0.0:9465",
        "0.0.0.0:9466",
        "do not agree on executor:946",
    ),
    "unscraped": (
        "prometheus.yml",
        "names: [worker]",
        "names: [workers]",
        "do not agree on workers",
    ),
    "unwatched": (
        "compose.yaml",
        "networks: [back, watch, models]",
        "networks: [back, models]",
        "Prometheus does not reach",
    ),
    "no traces": ("collector.yaml", "0.0.0.0:4317", "0.0.0.0:4318", "no collector listens at"),
    "the proxy elsewhere": (
        "haproxy.cfg",
        "bind :50051",
        "bind :50052",
        "does not listen at port 50051",
    ),
    "the proxy without HTTP": (
        "haproxy.cfg",
        "alpn h2,http/1.1",
        "alpn h2",
        "does not listen at port 50080",
    ),
    "HTTP from other machines": (
        "compose.yaml",
        '"127.0.0.1:${HTTP',
        '"${HTTP',
        "port 50080 can be reached from other",
    ),
    "an API without TLS": (
        "compose.yaml",
        "      PALIMPSEST_TLS_CERTIFICATE_FILE: /run/secrets/api.pem\n",
        "",
        "the API is served without TLS",
    ),
    "an API without keys": (
        "compose.yaml",
        "PALIMPSEST_AUTHENTICATION: required",
        "PALIMPSEST_AUTHENTICATION: none",
        "the API is served without keys",
    ),
    "an insecure API": (
        "compose.yaml",
        "      PALIMPSEST_AUTHENTICATION: required",
        "      PALIMPSEST_INSECURE: 'true'",
        "the API waives TLS and keys",
    ),
    "a proxy that trusts any": (
        "haproxy.cfg",
        "verify required",
        "verify none",
        "does not check the API's certificate at port 50080",
    ),
    "the proxy blind": (
        "haproxy.cfg",
        "port 9464",
        "port 9465",
        "does not look at port 9464 for port 50080",
    ),
    "a proxy too small": (
        "compose.yaml",
        "      replicas: 2\n",
        "      replicas: 9\n",
        "no room for all",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_noticed(loader: Path, copied: Path, name: str) -> None:
    file, old, new, said = BROKEN[name]
    path = copied / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    try:
        faults = Deployment.load(loader, copied, ALL_FILES, NAMED).faults()
    except ValueError as error:
        faults = [str(error)]
    assert any(said in fault for fault in faults), faults


def test_the_command_line_is_ours() -> None:
    assert wrong_command(["executor", "--socket", "/run/x"]) == ""
    assert "no command" in wrong_command(["caller"])
    assert "--sock" in wrong_command(["executor", "--sock", "/run/x"])


def test_secrets_are_made_once_and_by_us_alone(loader: Path, copied: Path) -> None:
    named = {
        Path(secret["file"]).name
        for secret in Deployment.load(loader, copied).project["secrets"].values()
    }
    run = [program("sh"), str(copied / "prepare.sh")]
    subprocess.run(run, check=True, capture_output=True)
    folder = copied / "secrets"
    first = {path.name: path.read_text() for path in folder.iterdir()}
    assert named <= set(first)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # A container's user reads them by their mounts, and writes none.
    modes = {name: stat.S_IMODE((folder / name).stat().st_mode) for name in first}
    assert modes.pop("ca.key") == 0o400, "no container gets it"
    assert {*modes.values()} == {0o444}
    passwords = {first[name] for name in first if name.endswith("_password")}
    assert len(passwords) == 5
    assert {len(one) for one in passwords} == {48}
    again = subprocess.run(run, check=True, capture_output=True, text=True)
    assert again.stdout == ""
    assert {path.name: path.read_text() for path in folder.iterdir()} == first


def test_git_takes_no_secrets(copied: Path) -> None:
    for name in ("secrets/database_url", ".env"):
        ignored = ["git", "check-ignore", "--quiet", f"deploy/compose/{name}"]
        assert subprocess.run(ignored, cwd=ROOT, check=False).returncode == 0


def test_prometheus_takes_its_files(copied: Path) -> None:
    # As they are mounted.
    (copied / "rules").symlink_to(copied.parent / "prometheus")
    check = [program("promtool"), "check", "config", "prometheus.yml"]
    done = subprocess.run(check, cwd=copied, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_haproxy_takes_its_file(copied: Path) -> None:
    subprocess.run([program("sh"), str(copied / "prepare.sh")], check=True, capture_output=True)
    file = copied / "haproxy.cfg"
    file.write_text(file.read_text().replace("/run/secrets", str(copied / "secrets")))
    check = [program("haproxy"), "-c", "-f", str(file)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Not a word against it either.
    assert "WARNING" not in done.stdout + done.stderr


def test_the_collector_has_the_parts_that_its_pipelines_name() -> None:
    # Its structure alone: the collector cannot be had here.
    config = yaml.safe_load((HERE / "collector.yaml").read_text())
    used: dict[str, set[str]] = {"receivers": set(), "processors": set(), "exporters": set()}
    for pipeline in config["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            used[kind] |= set(names)
        # What it refuses has to be refused first.
        assert pipeline["processors"][0] == "memory_limiter"
    assert used == {kind: set(config[kind]) for kind in used}


@pytest.mark.parametrize("folder", ["compose", "systemd"])
def test_a_readme_names_what_there_is(folder: str) -> None:
    here = ROOT / "deploy" / folder
    text = (here / "README.md").read_text()
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text):
        page = (here / target).resolve()
        assert page.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in slugs, f"{target}#{anchor}"
    text = re.sub(r"\]\([^)]*\)", "", text)
    files = {path.name for path in here.iterdir()}
    names = re.findall(r"\b[a-z_.-]+\.(?:yaml|yml|sh|cfg|conf|py|sysusers|tmpfiles|env)\b", text)
    # What is made elsewhere.
    made = {"valkey_password.conf", "palimpsest.conf"}
    assert set(names) - made <= files, set(names) - made - files
    units = set(re.findall(r"palimpsest-[a-z]+@?(?=\d?\.(?:service|timer))", text))
    assert {unit for unit in units if not list(here.glob(f"{unit}.*"))} == set()
