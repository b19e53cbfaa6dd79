"""The chart as Helm renders it, for tests: manifests, and the processes that they describe."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests import ROOT

CHART = ROOT / "deploy/chart/palimpsest"
MINIMAL = CHART / "ci/minimal-values.yaml"
PRODUCTION = CHART / "ci/production-values.yaml"
#: The lowest that Chart.yaml allows, and the highest whose schemas the lock has.
VERSIONS = ("1.30", "1.37")
RELEASE, NAMESPACE = "memories", "agents"

Manifest = dict[str, Any]


def tool(name: str) -> str:
    """Returns the path of a program that `make setup-deploy` put into .cache."""
    path = ROOT / ".cache" / name
    if not path.exists():
        pytest.fail(f"{path.relative_to(ROOT)} is missing; `make setup-deploy` makes it")
    return str(path)


def helm(*arguments: str | Path, chart: Path = CHART) -> subprocess.CompletedProcess[str]:
    """Runs Helm on the chart; the first argument is its command."""
    command, *rest = map(str, arguments)
    positions = [RELEASE, str(chart)] if command == "template" else [str(chart)]
    version = [] if command == "package" else ["--kube-version", f"{VERSIONS[-1]}.0"]
    return subprocess.run(
        [tool("helm"), command, *positions, "--namespace", NAMESPACE, *version, *rest],
        capture_output=True,
        text=True,
        check=False,
    )


@cache
def rendered(values: Path, *more: str) -> str:
    """Returns all manifests, as Helm prints them."""
    done = helm("template", "--values", values, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifests(values: Path, *more: str) -> list[Manifest]:
    """Returns all manifests."""
    return [one for one in yaml.safe_load_all(rendered(values, *more)) if one]


def by_kind(found: Sequence[Manifest], kind: str) -> dict[str, Manifest]:
    """Returns those of one kind, by what their names end in."""
    prefix = f"{RELEASE}-palimpsest"
    named = (
        (one["metadata"]["name"].removeprefix(prefix).lstrip("-"), one)
        for one in found
        if one["kind"] == kind
    )
    return dict(named)


def pods(found: Sequence[Manifest]) -> dict[str, Manifest]:
    """Returns the pod templates of all that makes pods, by its name's end."""
    made = {**by_kind(found, "Deployment"), **by_kind(found, "Job")}
    return {name: one["spec"]["template"] for name, one in made.items()}


def containers(pod: Manifest) -> dict[str, Manifest]:
    """Returns the containers of a pod in the order in which they start."""
    spec = pod["spec"]
    return {one["name"]: one for one in (*spec.get("initContainers", ()), *spec["containers"])}


def environment(container: Manifest, found: Sequence[Manifest]) -> dict[str, str]:
    """Returns a container's variables, but for those from secrets."""
    said: dict[str, str] = {}
    maps = {one["metadata"]["name"]: one for one in found if one["kind"] == "ConfigMap"}
    for source in container.get("envFrom", ()):
        said |= maps[source["configMapRef"]["name"]]["data"] or {}
    return said | {one["name"]: one["value"] for one in container["env"] if "value" in one}


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Returns whether a label selector of Kubernetes takes an object with these labels."""

    def taken(one: Mapping[str, Any]) -> bool:
        assert one["operator"] == "In", "no other is used"
        return labels.get(one["key"]) in one["values"]

    wanted = selector.get("matchLabels", {})
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        taken(one) for one in selector.get("matchExpressions", ())
    )


def walk(value: Any) -> Iterator[Any]:
    """Yields everything in a manifest."""
    yield value
    if isinstance(value, dict):
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from walk(inner)
