"""What deploy/compose says, as Docker Compose reads it, and what is wrong with it."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml  # type: ignore[import-untyped, unused-ignore]
from typer.core import TyperGroup

from service.cli.commands import app
from service.settings.config import Config
from service.settings.environment import unknown_variables

#: The files of a deployment, and those that may be added.
FILES = ("compose.yaml",)
ALL_FILES = (*FILES, "compose.model.yaml", "compose.vectors.yaml")
#: Variables that the files that may be added require.
NAMED = {"PALIMPSEST_MODEL": "openai/x", "PALIMPSEST_EMBEDDING_MODEL": "openai/y"}
_PINNED = re.compile(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+[a-z0-9.-]*")
_SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|API_KEY|_URL$")
_OF_OURS = "PALIMPSEST_"
#: A process stops in its time and a moment (docs/guides/running.md#stopping).
_MOMENT_SECONDS = 10
#: How long a model call may take: what was paid for is finished.
CALL_SECONDS = Config.model_fields["model_timeout_seconds"].default
_UNITS = {"h": 3600, "m": 60, "s": 1}


def program(name: str, install: str = "make setup-deploy") -> str:
    """Returns the path of a program that these tests need; fails where there is none."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        pytest.fail(f"{name} is not installed; `{install}` does it on Debian")
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """A service of the project."""

    name: str
    raw: dict[str, Any]

    @property
    def is_ours(self) -> bool:
        """Whether it runs our image."""
        return str(self.raw["image"]).startswith("palimpsest:")

    @property
    def environment(self) -> dict[str, str]:
        """Returns the variables of a service."""
        return self.raw.get("environment") or {}

    @property
    def networks(self) -> set[str]:
        """The networks it is in."""
        return set(self.raw["networks"])

    @property
    def command(self) -> list[str]:
        """Returns the command of a service."""
        return self.raw.get("command") or []

    def port(self, variable: str) -> int:
        """Returns the port of an address in a variable."""
        return int(self.environment[variable].rpartition(":")[2])


@dataclass(frozen=True)
class Deployment:
    """A folder like deploy/compose, loaded."""

    folder: Path
    project: dict[str, Any]

    @classmethod
    def load(
        cls,
        loader: Path,
        folder: Path,
        files: Sequence[str] = FILES,
        variables: Mapping[str, str] | None = None,
    ) -> "Deployment":
        """Loads it. Raises ValueError with what Docker Compose would say."""
        done = subprocess.run(
            [str(loader), *files],
            cwd=folder,
            env={"PATH": os.environ["PATH"], **(variables or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ValueError(done.stderr.strip())
        return cls(folder, json.loads(done.stdout))

    @cached_property
    def services(self) -> dict[str, Service]:
        """All services."""
        found: dict[str, Any] = self.project["services"]
        return {name: Service(name=name, raw=raw) for name, raw in found.items()}

    @cached_property
    def ours(self) -> list[Service]:
        """Returns the services that run our image."""
        return [one for one in self.services.values() if one.is_ours]

    def text(self, name: str) -> str:
        """Returns a file beside compose.yaml."""
        return (self.folder / name).read_text()

    def faults(self) -> list[str]:
        """Returns what is wrong with it, a line each."""
        return (
            [
                f"{one.name}: {said}"
                for one in self.services.values()
                for said in (*_hardening(one), *_files(one, self.folder), *_secrets(one))
            ]
            + [
                f"{one.name}: {said}"
                for one in self.ours
                for said in (*_process(one), *self._dependencies(one), *self._isolation(one))
            ]
            + [*self._addresses(), *self._executor(), *self._unused_secrets()]
        )

    def _dependencies(self, one: Service) -> Iterator[str]:
        needs = one.raw.get("depends_on", {})
        if one.name != "migrate":
            wanted = "service_completed_successfully"
            if needs.get("migrate", {}).get("condition") != wanted:
                yield "does not wait for migrate"
        for name, need in needs.items():
            probed = "healthcheck" in self.services[name].raw
            if need["condition"] == "service_healthy" and not probed:
                yield f"waits for the health of {name}, which has no healthcheck"

    def _isolation(self, one: Service) -> Iterator[str]:
        if one.raw.get("ports"):
            yield "publishes a port: the proxy's is the only one"
        for name in one.networks:
            internal = self.project["networks"][name].get("internal", False)
            others = [
                other.name
                for other in self.services.values()
                if name in other.networks and not other.is_ours
            ]
            if not internal and others:
                yield f"{name} is not internal, and {', '.join(others)} in it reaches all"

    def _addresses(self) -> Iterator[str]:
        services, proxy = self.services, self.text("haproxy.cfg")
        api = services["api"]
        metrics = api.port("PALIMPSEST_METRICS_LISTEN")
        published = [one["target"] for one in services["proxy"].raw["ports"]]
        for variable, protocols, port in zip(
            ("PALIMPSEST_LISTEN", "PALIMPSEST_HTTP_LISTEN"),
            ("h2", "h2,http/1.1"),
            published,
            strict=True,
        ):
            yield from _proxied(proxy, api, api.port(variable), metrics)
            bind = f"    bind :{port} ssl crt /run/secrets/api.pem alpn {protocols} "
            if not any(line.startswith(bind) for line in proxy.splitlines()):
                yield f"haproxy.cfg does not listen at port {port}"
        if api.environment.get("PALIMPSEST_TLS_CERTIFICATE_FILE") != "/run/secrets/api.pem":
            yield "the API is served without TLS"
        if api.environment.get("PALIMPSEST_AUTHENTICATION") != "required":
            yield "the API is served without keys"
        if "PALIMPSEST_INSECURE" in api.environment:
            yield "the API waives TLS and keys"
        yield from self._scraped()
        receiver = yaml.safe_load(self.text("collector.yaml"))["receivers"]["otlp"]
        port = receiver["protocols"]["grpc"]["endpoint"].rpartition(":")[2]
        for one in self.ours:
            spans = one.environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
            if spans not in (None, f"http://collector:{port}"):
                yield f"{one.name}: no collector listens at {spans}"
            if spans and not one.networks & services["collector"].networks:
                yield f"{one.name}: does not reach the collector"

    def _scraped(self) -> Iterator[str]:
        scraped = set()
        for job in yaml.safe_load(self.text("prometheus.yml"))["scrape_configs"]:
            for place in job.get("dns_sd_configs", ()):
                scraped |= {(name, place["port"]) for name in place["names"]}
        measured = {
            (one.name, one.port("PALIMPSEST_METRICS_LISTEN"))
            for one in self.ours
            if "PALIMPSEST_METRICS_LISTEN" in one.environment
        }
        for name, port in sorted(scraped ^ measured):
            yield f"prometheus.yml and compose.yaml do not agree on {name}:{port}"
        for name, _ in sorted(measured):
            if not self.services[name].networks & self.services["prometheus"].networks:
                yield f"{name}: Prometheus does not reach it"

    def _executor(self) -> Iterator[str]:
        executor = self.services["executor"]
        if float(executor.environment["PALIMPSEST_STOP_SECONDS"]) < CALL_SECONDS:
            yield "executor: stops before a model call ends"
        socket = Path(executor.command[-1])
        for one in self.ours:
            if one.name == "migrate":
                continue
            if one.environment.get("PALIMPSEST_CALLER_SOCKET") != str(socket):
                yield f"{one.name}: does not name the executor's socket"
            shared = {
                mount["source"]
                for mount in one.raw.get("volumes", ())
                if mount["target"] == str(socket.parent)
            }
            if shared != {"executor"}:
                yield f"{one.name}: does not share the executor's socket"

    def _unused_secrets(self) -> Iterator[str]:
        used = {
            secret["source"]
            for one in self.services.values()
            for secret in one.raw.get("secrets", ())
        }
        yield from (
            f"{name}: nobody uses it" for name in self.project["secrets"] if name not in used
        )


def seconds(duration: str) -> float:
    """Returns what Compose writes as 1m30s."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", duration)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def wrong_command(words: Sequence[str]) -> str:
    """Returns what our command line says against a command; empty where nothing is."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    above = group.make_context("palimpsest", [], resilient_parsing=True)
    found = group.get_command(above, words[0])
    if found is None:
        return f"palimpsest has no command {words[0]}"
    try:
        # It is read, and not run.
        found.make_context(words[0], list(words[1:]), parent=above)
    except Exception as error:
        # Typer contains its errors, and does not document where.
        return str(getattr(error, "message", "") or error)
    return ""


def _proxied(proxy: str, api: Service, port: int, metrics: int) -> Iterator[str]:
    """Yields what is wrong with how the proxy reaches a port of the API servers."""
    found = re.search(rf"server-template \S+ (\d+) api:{port} (.*)", proxy)
    if found is None:
        yield f"haproxy.cfg does not lead to api:{port}"
        return
    slots, options = int(found[1]), found[2]
    if not options.startswith(
        "ssl ca-file /run/secrets/ca.pem verify required verifyhost localhost "
    ):
        yield f"haproxy.cfg does not check the API's certificate at port {port}"
    if f" port {metrics} " not in options:
        yield f"haproxy.cfg does not look at port {metrics} for port {port}"
    if slots < api.raw["deploy"]["replicas"]:
        yield f"haproxy.cfg has no room for all API servers at port {port}"


def _hardening(one: Service) -> Iterator[str]:
    raw = one.raw
    if not raw.get("read_only"):
        yield "its root can be written"
    if raw.get("cap_drop") != ["ALL"] or raw.get("cap_add"):
        yield "has capabilities"
    if raw.get("security_opt") != ["no-new-privileges:true"]:
        yield "may gain privileges"
    if raw.get("privileged") or raw.get("network_mode") or raw.get("pid") or raw.get("ipc"):
        yield "is not apart from its machine"
    limits = raw.get("deploy", {}).get("resources", {}).get("limits", {})
    yield from (
        f"has no limit of {what}" for what in ("cpus", "memory", "pids") if not limits.get(what)
    )
    if not _PINNED.fullmatch(raw["image"]):
        yield f"{raw['image']} is not pinned"
    if "stop_grace_period" not in raw:
        yield "is given no time to stop"
    if raw.get("restart") != ("no" if one.name == "migrate" else "unless-stopped"):
        yield f"restarts {raw.get('restart')}"
    for port in raw.get("ports", ()):
        if port.get("host_ip") != "127.0.0.1":
            yield f"port {port['target']} can be reached from other machines"


def _files(one: Service, folder: Path) -> Iterator[str]:
    for mount in one.raw.get("volumes", ()):
        if mount["type"] == "bind":
            if not mount.get("read_only"):
                yield f"can write {mount['source']}"
            if not Path(mount["source"]).exists():
                yield f"there is no {os.path.relpath(mount['source'], folder)}"


def _secrets(one: Service) -> Iterator[str]:
    held = {secret["target"] for secret in one.raw.get("secrets", ())}
    for name, value in one.environment.items():
        if re.search(r"://[^/]*:[^/]*@", value or ""):
            yield f"{name} holds a password"
        if name.endswith("_FILE"):
            if value not in held:
                yield f"{name} names {value}, which is none of its secrets"
        elif _SECRET.search(name) and value and "BASE_URL" not in name:
            yield f"{name} holds a secret: give it as a file"
    files = {value for name, value in one.environment.items() if name.endswith("_FILE")}
    if one.is_ours:
        yield from (f"{target} is not used" for target in sorted(held - files))


def _process(one: Service) -> Iterator[str]:
    # A value that is refused is found by the rehearsal.
    ours = {k: v for k, v in one.environment.items() if k.startswith(_OF_OURS)}
    yield from (f"{name} is no setting" for name, _ in unknown_variables(ours))
    if said := wrong_command(one.command):
        yield said
    uid = str(one.raw.get("user", "0")).partition(":")[0]
    if uid in ("0", "root"):
        yield "runs as root"
    run_dir = one.environment.get("PALIMPSEST_RUN_DIR", "")
    folders = dict(entry.split(":", 1) for entry in one.raw.get("tmpfs", ()))
    if not {"mode=0700", f"uid={uid}"} <= set(folders.get(run_dir, "").split(",")):
        yield f"PALIMPSEST_RUN_DIR ({run_dir}) is no folder of its user alone"
    if one.name == "migrate":
        return
    stop = float(one.environment.get("PALIMPSEST_STOP_SECONDS", 30)) + _MOMENT_SECONDS
    if seconds(one.raw["stop_grace_period"]) < stop:
        yield "is killed before it has stopped"
    probe = one.raw.get("healthcheck", {"test": [], "timeout": "0s"})
    if probe["test"][:4] != ["CMD", "python", "-m", "service.app.health"]:
        yield "has no healthcheck"
    elif probe["test"][4:] != ["--kind", one.command[0]]:
        yield "its health is another process's"
    # A process that hangs takes five seconds.
    if seconds(probe["timeout"]) <= 5:
        yield "its healthcheck is given too little time"
