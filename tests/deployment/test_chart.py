"""The Helm chart renders valid manifests that fit the programs that they start."""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml  # type: ignore[import-untyped]
from typer.core import TyperGroup

from service.cli.app import new_app
from service.cli.run import register
from service.settings import reading
from service.settings.config import Config
from service.settings.listening import is_authenticated, is_local
from tests import ROOT
from tests.deployment.chart import (
    CHART,
    MINIMAL,
    NAMESPACE,
    PRODUCTION,
    RELEASE,
    VERSIONS,
    Manifest,
    by_kind,
    containers,
    environment,
    helm,
    manifests,
    matches,
    pods,
    rendered,
    tool,
    walk,
)
from tests.deployment.custom_resources import is_custom, problems
from tests.support.certificates import Authority

BOTH = pytest.mark.parametrize("values", [MINIMAL, PRODUCTION], ids=lambda path: path.stem)
#: Names and labels of objects that Kubernetes' schemas do not bound.
MAX_NAME_CHARACTERS = 63
#: What the Secrets of a deployment hold, by the variable that it is for.
SECRETS = {
    **dict.fromkeys(
        (f"PALIMPSEST_{name}DATABASE_URL" for name in ("", "MIGRATION_", "SIGNALS_")),
        "postgresql://login:hidden-word@db:5432/palimpsest",
    ),
    "PALIMPSEST_REDIS_URL": "redis://:hidden-word@cache:6379/0",
    "PALIMPSEST_MODEL_API_KEY": "hidden-word",
    "PALIMPSEST_EMBEDDING_API_KEY": "hidden-word",
    "PALIMPSEST_DEPLOYMENTS": "[]",
}
#: The ports of the probes of startup, readiness and liveness, by process.
METRICS_PORTS = {"api": 9464, "worker": 9464, "executor": 9465}


def invalid(text: str, version: str, folder: Path) -> str:
    """Returns what the schemas of a version of Kubernetes find wrong with manifests, or nothing."""
    own = [one for one in yaml.safe_load_all(text) if one and not is_custom(one)]
    path = folder / "manifests.yaml"
    path.write_text(yaml.safe_dump_all(own))
    done = subprocess.run(
        [tool("kubernetes-validate/bin/kubernetes-validate"), "--strict", "-k", version, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode or said.count(" passed for ") == len(own), said
    return said if done.returncode else ""


@BOTH
def test_helm_finds_nothing_to_say_but_that_there_is_no_icon(values: Path) -> None:
    done = helm("lint", "--strict", "--values", values)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert said == ["[INFO] Chart.yaml: icon is recommended"]


@BOTH
@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_those_of_kubernetes(values: Path, version: str, tmp_path: Path) -> None:
    assert invalid(rendered(values), version, tmp_path) == ""


@pytest.mark.parametrize(
    ("switch", "kinds"),
    [
        ("migration.enabled=false", {"Job": 0, "NetworkPolicy": 2, "ServiceAccount": 1}),
        ("serviceAccount.create=false", {"ServiceAccount": 0}),
        ("networkPolicy.enabled=false", {"NetworkPolicy": 0}),
        ("networkPolicy.egress.enabled=false", {"NetworkPolicy": 3}),
        ("api.podDisruptionBudget.enabled=false", {"PodDisruptionBudget": 1}),
        ("api.autoscaling.enabled=true", {"HorizontalPodAutoscaler": 1}),
        ("api.topologySpread=null", {"Deployment": 2}),
    ],
)
def test_every_switch_gives_valid_manifests(
    switch: str, kinds: dict[str, int], tmp_path: Path
) -> None:
    text = rendered(MINIMAL, "--set", switch)
    assert invalid(text, VERSIONS[0], tmp_path) == ""
    found = manifests(MINIMAL, "--set", switch)
    assert {kind: len(by_kind(found, kind)) for kind in kinds} == kinds


def test_the_lowest_version_that_is_checked_is_the_lowest_that_is_allowed() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={VERSIONS[0]}.0-0"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("terminationGracePeriodSeconds:", "terminationGracePeriodSecond:"),
        ("unhealthyPodEvictionPolicy:", "unhealthyPodsEvictionPolicy:"),
        ("failureThreshold: 60", 'failureThreshold: "60"'),
        ("activeDeadlineSeconds:", "activeDeadline:"),
    ],
)
def test_a_misspelled_field_is_found(right: str, wrong: str, tmp_path: Path) -> None:
    text = rendered(MINIMAL)
    assert right in text
    assert invalid(text.replace(right, wrong), VERSIONS[-1], tmp_path)


def test_custom_resources_are_those_of_their_operators() -> None:
    custom = [one for one in manifests(PRODUCTION) if is_custom(one)]
    assert sorted(one["kind"] for one in custom) == ["PodMonitor", "PrometheusRule", "ScaledObject"]
    assert {one["kind"]: problems(one) for one in custom if problems(one)} == {}
    assert [one for one in manifests(MINIMAL) if is_custom(one)] == []


def test_a_misspelled_field_of_a_custom_resource_is_found() -> None:
    scaled = by_kind(manifests(PRODUCTION), "ScaledObject")["worker"]
    scaled["spec"]["triggers"][0]["metricsType"] = "Value"
    del scaled["spec"]["scaleTargetRef"]["name"]
    assert sorted(problems(scaled)) == [
        "'name' is a required property",
        "Additional properties are not allowed ('metricsType' was unexpected)",
    ]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("api.replcias=2", "additional properties 'replcias' not allowed"),
        ("api.replicas=two", "at '/api/replicas': got string, want integer"),
        ("worker.autoscaling.minReplicas=0", "minimum: got 0, want 1"),
        ("settings.PALIMPSEST_POOL_SIZE=20", "got number, want string"),
        ("settings.POOL_SIZE=x", "invalid propertyName 'POOL_SIZE'"),
        ("image.digest=sha256:12", "does not match pattern"),
        ("settings.PALIMPSEST_DATABASE_URL=x", "name that in secrets.databaseUrl.existingSecret"),
        ("settings.PALIMPSEST_REDIS_URL_FILE=x", "name that in secrets.redisUrl.existingSecret"),
        ("settings.PALIMPSEST_LISTEN=x", "the chart sets it itself; see api.service.port"),
        ("worker.executor.stopSeconds=120", "no more than a model call may take"),
        ("settings.PALIMPSEST_START_SECONDS=300", "set it to 90 or less"),
        ("extraEnv[0].name=PALIMPSEST_LISTEN", "extraEnv: PALIMPSEST_LISTEN: the chart sets it"),
        (
            "worker.extraEnv[0].name=PALIMPSEST_DATABASE_URL",
            "name its Secret in secrets.databaseUrl.existingSecret",
        ),
        (
            "worker.executor.extraEnv[0].name=PALIMPSEST_MODEL_TIMEOUT_SECONDS",
            "worker.executor.extraEnv: PALIMPSEST_MODEL_TIMEOUT_SECONDS: give it in settings",
        ),
        ("worker.autoscaling.enabled=true", "say where KEDA asks Prometheus"),
        ("secrets.databaseUrl.existingSecret=", "make a Secret with the URL of your PostgreSQL"),
        ("settings.PALIMPSEST_TLS_KEY_FILE=/x", "the chart sets it itself; see tls.existingSecret"),
        ("api.extraEnv[0].name=PALIMPSEST_TLS_KEY_FILE", "the chart sets it itself"),
        ("tls.existingSecret=", "tls.existingSecret is empty"),
        ("tls.certificate=x", "certificate"),
    ],
)
def test_bad_values_are_refused_with_what_to_do(setting: str, said: str) -> None:
    # What looks like a number in settings is a string, but where that is what is wrong.
    option = "--set-string" if "SECONDS" in setting and setting[0] == "s" else "--set"
    done = helm("template", "--values", MINIMAL, option, setting)
    assert done.returncode != 0
    assert said in done.stderr


def test_the_defaults_want_a_database_and_a_certificate_and_nothing_else() -> None:
    done = helm("template")
    assert done.returncode != 0
    assert "secrets.databaseUrl.existingSecret is empty" in done.stderr
    done = helm("template", "--set", "secrets.databaseUrl.existingSecret=palimpsest-database")
    assert done.returncode != 0
    assert "tls.existingSecret is empty: make a Secret of type kubernetes.io/tls" in done.stderr
    assert yaml.safe_load(MINIMAL.read_text()) == {
        "secrets": {"databaseUrl": {"existingSecret": "palimpsest-database"}},
        "tls": {"existingSecret": "palimpsest-tls"},
    }


def test_tls_and_keys_are_waived_by_one_word() -> None:
    waived = helm(
        *("template", "--values", MINIMAL, "--set", "tls.existingSecret=", "--set", "insecure=true")
    )
    assert waived.returncode == 0, waived.stderr
    assert "- --insecure" in waived.stdout
    assert "TLS_CERTIFICATE_FILE" not in waived.stdout
    served = helm("template", "--values", MINIMAL)
    assert "--insecure" not in served.stdout
    assert "secretName: palimpsest-tls" in served.stdout


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (project, project)
    images = [
        one["image"]
        for pod in pods(manifests(MINIMAL)).values()
        for one in containers(pod).values()
    ]
    assert images == [f"palimpsest:{project}"] * 4
    pinned = {
        one["image"]
        for pod in pods(manifests(PRODUCTION)).values()
        for one in containers(pod).values()
    }
    digest = yaml.safe_load(PRODUCTION.read_text())["image"]["digest"]
    assert pinned == {f"registry.example/palimpsest@{digest}"}


@BOTH
def test_every_process_is_one_of_ours(values: Path) -> None:
    found = manifests(values)
    app = new_app()
    register(app)
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    commands = group.commands
    started = {}
    for pod in pods(found).values():
        for name, container in containers(pod).items():
            command, *arguments = container["args"]
            context = commands[command].make_context(command, arguments)
            started[name] = command
            if command == "serve":
                assert context.params["insecure"] is False
                assert not is_local(context.params["listen"])
    assert started == {
        "api": "serve",
        "worker": "work",
        "executor": "executor",
        "migrate": "migrate",
    }


@BOTH
def test_every_process_takes_its_settings(values: Path, tmp_path: Path) -> None:
    found = manifests(values)
    for variable, secret in SECRETS.items():
        (tmp_path / f"{variable}_FILE").write_text(secret)
    served = Authority().issue("memories-palimpsest")
    (tmp_path / "PALIMPSEST_TLS_CERTIFICATE_FILE").write_bytes(served.pem)
    (tmp_path / "PALIMPSEST_TLS_KEY_FILE").write_bytes(served.key_pem)
    (tmp_path / "PALIMPSEST_TLS_CLIENT_CA_FILE").write_bytes(Authority().root.pem)
    for pod in pods(found).values():
        for name, container in containers(pod).items():
            said = environment(container, found)
            for variable in said:
                if variable.endswith("_FILE"):
                    said[variable] = str(tmp_path / variable)
            read = reading.read(said)
            assert read.problems == [], name
            assert read.config is not None
            if name == "migrate":
                assert read.config.migration_database_url or read.config.database_url
                continue
            assert reading.findings(read.config) == []
            config = read.config
            if name == "api":
                config = config.model_copy(update={"listen": "0.0.0.0:50051"})
                assert is_authenticated(config)
            assert list(reading.refusals(config)) == []
            # A folder of its own below the volume, which belongs to root.
            assert config.run_dir.parent == Path("/run/palimpsest")


@BOTH
def test_probes_ask_what_listens(values: Path) -> None:
    found = manifests(values)
    for name, pod in pods(found).items():
        for container in containers(pod).values():
            if name == "migrate":
                assert not any(key.endswith("Probe") for key in container)
                continue
            ports = {one["name"]: one["containerPort"] for one in container["ports"]}
            metrics = METRICS_PORTS[container["name"]]
            said = environment(container, found)
            assert said["PALIMPSEST_METRICS_LISTEN"] == f"0.0.0.0:{metrics}"
            assert metrics in ports.values()
            probes = [container[f"{one}Probe"] for one in ("startup", "readiness", "liveness")]
            if container["name"] == "api":
                listen = container["args"][container["args"].index("--listen") + 1]
                assert ports["grpc"] == int(listen.rpartition(":")[2])
                assert said["PALIMPSEST_HTTP_LISTEN"] == f"0.0.0.0:{ports['http']}"
            # The API is no exception: Kubernetes asks by gRPC without TLS only.
            asked = [(one["httpGet"]["path"], ports[one["httpGet"]["port"]]) for one in probes]
            assert asked == [("/readyz", metrics), ("/readyz", metrics), ("/livez", metrics)]


@BOTH
def test_no_pod_may_do_more_than_it_needs(values: Path) -> None:
    for pod in pods(manifests(values)).values():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 65532
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(pod).values():
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"requests", "limits"} <= container["resources"].keys()
            mounted = {one["name"]: one for one in container["volumeMounts"]}
            assert mounted["tmp"]["mountPath"] == "/tmp"
            assert mounted["secrets"]["readOnly"] is True


@BOTH
def test_secrets_are_named_and_never_said(values: Path) -> None:
    found = manifests(values)
    assert by_kind(found, "Secret") == {}
    given = {**yaml.safe_load((CHART / "values.yaml").read_text())["secrets"]}
    for name, one in yaml.safe_load(values.read_text())["secrets"].items():
        given[name] = {**given[name], **one}
    wanted = {(one["existingSecret"], one["key"]) for one in given.values()}
    wanted = {one for one in wanted if one[0]}
    mounted = set()
    for name, pod in pods(found).items():
        volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
        sources = [one["secret"] for one in volumes["secrets"]["projected"]["sources"]]
        keys = {(one["name"], item["key"]) for one in sources for item in one["items"]}
        paths = {item["path"] for one in sources for item in one["items"]}
        mounted |= keys
        for container in containers(pod).values():
            at = next(m["mountPath"] for m in container["volumeMounts"] if m["name"] == "secrets")
            said = environment(container, found)
            files = {n: v for n, v in said.items() if n.endswith("_FILE") and "_TLS_" not in n}
            assert set(files.values()) == {f"{at}/{path}" for path in paths}
            for variable, path in files.items():
                meant = variable.removeprefix("PALIMPSEST_").removesuffix("_FILE")
                assert Path(path).name == meant.lower().replace("_", "-")
        owner = given["migrationDatabaseUrl"]
        holds_owner = (owner["existingSecret"], owner["key"]) in keys
        assert holds_owner == (name == "migrate" and bool(owner["existingSecret"]))
    assert mounted == wanted
    # No variable holds one either: what is written out are settings that hide nothing.
    for pod in pods(found).values():
        for container in containers(pod).values():
            assert not {one["name"] for one in container["env"]} & SECRETS.keys()


@BOTH
def test_hooks_migrate_before_anything_else_and_never_on_the_way_back(values: Path) -> None:
    found = manifests(values)
    job = by_kind(found, "Job")["migrate"]
    hooks = [one for one in found if "helm.sh/hook" in one["metadata"].get("annotations", {})]
    weights = {}
    for one in hooks:
        annotations = one["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
        # One that failed is there to be looked at until the next try takes it away.
        policy = annotations["helm.sh/hook-delete-policy"].split(",")
        assert policy == ["before-hook-creation", "hook-succeeded"]
        weights[one["kind"]] = int(annotations["helm.sh/hook-weight"])
    assert weights.keys() == {"Job", "NetworkPolicy", "ServiceAccount"}
    assert max(weights, key=weights.__getitem__) == "Job"
    assert len({*weights.values()}) == 2
    # What the Job refers to exists by then: hooks of less weight, and Secrets that are not ours.
    pod = job["spec"]["template"]["spec"]
    accounts = [one["metadata"]["name"] for one in hooks if one["kind"] == "ServiceAccount"]
    assert [pod["serviceAccountName"]] == accounts
    own = {one["metadata"]["name"] for one in found if one["kind"] == "ConfigMap"}
    named = {
        value
        for one in walk(pod)
        if isinstance(one, dict)
        for key, value in one.items()
        if key == "name" and isinstance(value, str)
    }
    assert not named & own
    assert "envFrom" not in pod["containers"][0]
    # It gets all settings nevertheless.
    given = yaml.safe_load(values.read_text()).get("settings", {})
    assert given.items() <= environment(pod["containers"][0], found).items()


@BOTH
def test_selectors_take_the_pods_that_they_are_meant_for(values: Path) -> None:
    found = manifests(values)
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(found).items()}

    def taken(selector: Manifest) -> set[str]:
        return {name for name, own in labels.items() if matches(selector, own)}

    for name, one in by_kind(found, "Deployment").items():
        assert taken(one["spec"]["selector"]) == {name}
        for spread in one["spec"]["template"]["spec"]["topologySpreadConstraints"]:
            assert taken(spread["labelSelector"]) == {name}
    for one in by_kind(found, "Service").values():
        assert taken({"matchLabels": one["spec"]["selector"]}) == {"api"}
    budgets = by_kind(found, "PodDisruptionBudget")
    assert {name: taken(one["spec"]["selector"]) for name, one in budgets.items()} == {
        "api": {"api"},
        "worker": {"worker"},
    }
    policies = by_kind(found, "NetworkPolicy")
    assert {name: taken(one["spec"]["podSelector"]) for name, one in policies.items()} == {
        name: {name} for name in ("api", "worker", "migrate")
    }
    for one in by_kind(found, "PodMonitor").values():
        assert taken(one["spec"]["selector"]) == {"api", "worker"}


@BOTH
def test_names_of_ports_are_those_of_containers(values: Path) -> None:
    found = manifests(values)
    ports = {
        port["name"]: port["containerPort"]
        for pod in pods(found).values()
        for one in containers(pod).values()
        for port in one.get("ports", ())
    }
    assert ports == {"grpc": 50051, "http": 50080, "metrics": 9464, "metrics-exec": 9465}
    # Kubernetes takes no longer name of a port.
    assert all(len(name) <= 15 for name in ports)
    services = by_kind(found, "Service")
    assert services["headless"]["spec"]["clusterIP"] == "None"
    for kind, one in services.items():
        wanted = ["grpc"] if kind == "headless" else ["grpc", "http"]
        assert [port["targetPort"] for port in one["spec"]["ports"]] == wanted
    for one in by_kind(found, "PodMonitor").values():
        scraped = {end["port"] for end in one["spec"]["podMetricsEndpoints"]}
        assert scraped == {"metrics", "metrics-exec"}


def test_the_alerts_are_those_of_prometheus_and_know_the_jobs() -> None:
    alerts = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    copy = CHART / "files/alerts.yml"
    assert copy.read_text() == alerts, f"cp deploy/prometheus/alerts.yml {copy.relative_to(ROOT)}"
    found = manifests(PRODUCTION)
    (rule,) = by_kind(found, "PrometheusRule").values()
    assert rule["spec"] == yaml.safe_load(alerts)
    address = "https://example.com/palimpsest/"
    linked = manifests(PRODUCTION, "--set", f"monitoring.prometheusRule.runbooks={address}")
    (rule,) = by_kind(linked, "PrometheusRule").values()
    urls = [
        one["runbook_url"] for one in walk(rule) if isinstance(one, dict) and "runbook_url" in one
    ]
    assert urls
    assert all(url.startswith(f"{address}docs/reference/alerts.md#") for url in urls)
    (monitor,) = by_kind(found, "PodMonitor").values()
    jobs = set()
    for end in monitor["spec"]["podMetricsEndpoints"]:
        (relabeling,) = end["relabelings"]
        assert relabeling["targetLabel"] == "job"
        for pod in pods(found).values():
            for container in containers(pod).values():
                if end["port"] in {port["name"] for port in container.get("ports", ())}:
                    component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
                    jobs.add(relabeling["replacement"].replace("$1", component))
    assert jobs == {"palimpsest-api", "palimpsest-worker", "palimpsest-executor"}
    assert jobs >= set(re.findall(r'job="([^"]+)"', alerts))


def test_only_labelled_clients_reach_the_api() -> None:
    policies = by_kind(manifests(MINIMAL), "NetworkPolicy")
    label = {"matchLabels": {f"{RELEASE}-palimpsest-client": "true"}}
    first, second = policies["api"]["spec"]["ingress"]
    assert first == {
        "ports": [{"protocol": "TCP", "port": name} for name in ("grpc", "http")],
        "from": [{"podSelector": label}, {"namespaceSelector": label}],
    }
    assert [one["port"] for one in second["ports"]] == [9464]
    (only,) = policies["worker"]["spec"]["ingress"]
    assert [one["port"] for one in only["ports"]] == [9464, 9465]
    assert "ingress" not in policies["migrate"]["spec"]
    # No rule without a port: nothing else is let out.
    egress = [rule for one in policies.values() for rule in one["spec"]["egress"]]
    assert all(rule["ports"] for rule in egress)
    assert {
        one["port"] for rule in policies["migrate"]["spec"]["egress"] for one in rule["ports"]
    } == {53, 5432}


def test_pods_have_the_time_that_their_processes_take_to_stop() -> None:
    for values in (MINIMAL, PRODUCTION):
        found = manifests(values)
        for name in ("api", "worker"):
            pod = pods(found)[name]
            takes = 0.0
            for container in containers(pod).values():
                takes += float(environment(container, found)["PALIMPSEST_STOP_SECONDS"])
                hook = container.get("lifecycle", {}).get("preStop", {})
                takes += hook.get("sleep", {}).get("seconds", 0)
            assert pod["spec"]["terminationGracePeriodSeconds"] > takes
        executor = containers(pods(found)["worker"])["executor"]
        # A sidecar: it is there before the worker, and gets SIGTERM when that has ended.
        assert executor["restartPolicy"] == "Always"
        said = environment(executor, found)
        timeout = float(
            said.get("PALIMPSEST_MODEL_TIMEOUT_SECONDS", Config().model_timeout_seconds)
        )
        assert float(said["PALIMPSEST_STOP_SECONDS"]) > timeout


@BOTH
def test_worker_and_executor_meet_in_a_folder_that_both_have(values: Path) -> None:
    pod = pods(manifests(values))["worker"]
    both = containers(pod)
    assert list(both) == ["executor", "worker"]
    socket = Path(both["executor"]["args"][-1])
    assert environment(both["worker"], manifests(values))["PALIMPSEST_CALLER_SOCKET"] == str(socket)
    for one in both.values():
        mounts = {m["mountPath"]: m["name"] for m in one["volumeMounts"]}
        assert mounts[str(socket.parent)] == "run"
    assert "emptyDir" in next(one for one in pod["spec"]["volumes"] if one["name"] == "run")


def test_a_change_of_settings_rolls_the_pods() -> None:
    def sums(*more: str) -> set[str]:
        found = pods(manifests(MINIMAL, *more))
        return {
            found[name]["metadata"]["annotations"]["checksum/settings"]
            for name in ("api", "worker")
        }

    before, after = sums(), sums("--set-string", "settings.PALIMPSEST_LOG_LEVEL=debug")
    assert len(before) == len(after) == 1
    assert before != after
    assert sums("--set", "api.replicas=5") == before


def test_autoscalers_have_their_targets_to_themselves() -> None:
    found = manifests(PRODUCTION)
    deployments = by_kind(found, "Deployment")
    assert not any("replicas" in one["spec"] for one in deployments.values())
    for kind in ("HorizontalPodAutoscaler", "ScaledObject"):
        for name, one in by_kind(found, kind).items():
            target = one["spec"]["scaleTargetRef"]["name"]
            assert target == deployments[name]["metadata"]["name"]
    triggers = by_kind(found, "ScaledObject")["worker"]["spec"]["triggers"]
    queries = [one["metadata"]["query"] for one in triggers]
    label = f'namespace="{NAMESPACE}"'
    assert queries == [
        f"sum(max by (state) (palimpsest_queue_items{{{label}}}))",
        f"max(palimpsest_queue_seconds{{{label}}})",
    ]
    left = manifests(MINIMAL, "--set", "api.replicas=null", "--set", "worker.replicas=null")
    assert not any("replicas" in one["spec"] for one in by_kind(left, "Deployment").values())


def test_names_stay_short_enough() -> None:
    found = manifests(MINIMAL, "--set", f"fullnameOverride={'n' * 60}")
    names = [one["metadata"]["name"] for one in found]
    assert max(map(len, names)) <= MAX_NAME_CHARACTERS


def test_the_package_has_all_that_it_needs(tmp_path: Path) -> None:
    done = helm("package", "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("*.tgz")
    done = helm("template", "--values", PRODUCTION, chart=package)
    assert done.stdout == rendered(PRODUCTION), done.stderr


def leaves(values: Any, path: str = "") -> Iterator[str]:
    """Yields the paths of all values that hold no further ones."""
    if not isinstance(values, dict) or not values:
        yield path
        return
    for name, inner in values.items():
        yield from leaves(inner, f"{path}.{name}".lstrip("."))


def test_the_table_of_values_is_that_of_the_chart() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    text = (CHART / "README.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (?:`(.+?)`)? ?\|", text, re.MULTILINE))
    for path, default in rows.items():
        found = values
        for name in path.split("."):
            found = found[name]
        assert not default or json.loads(default) == found, path
    # One row serves what `api` and `worker` have alike.
    alike = {re.sub(r"^api\.", "worker.", path) for path in rows}
    alike |= {path.replace("worker.", "worker.executor.") for path in alike}
    told = {*rows, *alike}
    untold = [
        leaf
        for leaf in leaves(values)
        if not any(leaf == path or leaf.startswith(f"{path}.") for path in told)
    ]
    assert untold == []
    # The schema knows all of them, and an `api` is no `worker`.
    assert values["api"].keys() - values["worker"].keys() == {"preStopSeconds", "service"}
