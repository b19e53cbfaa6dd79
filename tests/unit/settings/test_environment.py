"""Misspelt variables are reported; those of other programs are left alone."""

import os
import re
from pathlib import Path

import pytest

from service.cli.output import CommandError
from service.cli.run import read_config
from service.settings.environment import OTHERS, PREFIX, TESTS, known_names, unknown_variables
from tests import ROOT

#: What may name variables.
TEXTS = (*(".py", ".md", "", ".sh"), *(".yaml", ".tpl", ".env", ".service", ".conf"))


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("PALIMPSEST_WORKER_CONCURENCY", "PALIMPSEST_WORKER_CONCURRENCY"),
        ("PALIMPSEST_MODEL_NAME", "PALIMPSEST_MODEL"),
        ("PALIMPSEST_LIMIT_MAX_MEMORYS", "PALIMPSEST_LIMIT_MAX_MEMORIES"),
        ("PALIMPSEST_MAX_CALLS", "PALIMPSEST_LIMIT_MAX_CALLS"),
        ("PALIMPSEST_DATABASEURL", "PALIMPSEST_DATABASE_URL"),
        ("PALIMPSEST_DATABSE_URL_FILE", "PALIMPSEST_DATABASE_URL_FILE"),
        ("PALIMPSEST_LIMIT_MAX_CALS_FILE", "PALIMPSEST_LIMIT_MAX_CALLS_FILE"),
        ("PALIMPSEST_CONFIG_FILE", "PALIMPSEST_CONFIG"),
        ("PALIMPSEST_ADDRESS_FILE", "PALIMPSEST_ADDRESS"),
        ("Palimpsest_Modle", "PALIMPSEST_MODEL"),
        ("PALIMPSEST_", ""),
        # Ends as one of Kubernetes', with a value that is none.
        ("PALIMPSEST_LISTEN_PORT", "PALIMPSEST_LISTEN"),
    ],
)
def test_an_unknown_variable_is_an_error_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, nearest: str
) -> None:
    monkeypatch.setenv(variable, "50051-secret-word")
    with pytest.raises(CommandError) as caught:
        read_config()
    assert str(caught.value).startswith(f"{variable} is no setting; the nearest is {nearest}")
    assert str(caught.value).endswith("_FILE") is nearest.endswith("_FILE")
    assert "secret-word" not in str(caught.value)


def test_each_of_several_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_LOGLEVEL", "info")
    monkeypatch.setenv("PALIMPSEST_MODELL", "offline/extractive")
    with pytest.raises(CommandError, match=r"LOG_LEVEL; PALIMPSEST_MODELL .* PALIMPSEST_MODEL$"):
        read_config()


#: What containers get for Services `palimpsest` and `palimpsest-api`.
KUBERNETES = {
    "SERVICE_HOST": "10.0.0.11",
    "SERVICE_PORT": "50051",
    "SERVICE_PORT_GRPC": "50051",
    "PORT": "tcp://10.0.0.11:50051",
    "PORT_50051_TCP": "tcp://10.0.0.11:50051",
    "PORT_50051_TCP_PROTO": "tcp",
    "PORT_50051_TCP_PORT": "50051",
    "PORT_50051_TCP_ADDR": "10.0.0.11",
}


@pytest.mark.parametrize("service", ["", "API_", "WORK_2_"])
def test_what_kubernetes_sets_for_services_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    for name, value in KUBERNETES.items():
        monkeypatch.setenv(f"{PREFIX}{service}{name}", value)
    read_config()
    assert not known_names() & KUBERNETES.keys(), "a setting of ours would be taken for theirs"


def test_every_variable_that_we_name_anywhere_is_known() -> None:
    named: set[str] = set()
    for folder in ("service", "storage", "clients", "docs", "tests", "deploy", ".ci"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in TEXTS and path != Path(__file__):
                named.update(re.findall(r"\bPALIMPSEST_[A-Z0-9_]*[A-Z0-9]\b", path.read_text()))
    named.update(re.findall(r"\bPALIMPSEST_[A-Z0-9_]+\b", (ROOT / "Makefile").read_text()))
    assert {f"{PREFIX}{one}" for one in OTHERS} <= named
    # Beginnings of their kind.
    named -= {"PALIMPSEST_LIMIT", "PALIMPSEST_TEST"}
    # A name of Python's, and what tests of deploy/ and of the release say that there is not.
    named -= {"PALIMPSEST_PURPOSE", "PALIMPSEST_MODLES", "PALIMPSEST_DOORS"}
    # What drivers of the conformance suite are started with.
    named -= {"PALIMPSEST_URL", "PALIMPSEST_HTTP_URL"}
    # The value of what Kubernetes sets.
    assert unknown_variables(dict.fromkeys(named, "tcp://10.0.0.11:50051")) == []


def test_variables_of_our_tests_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}{TESTS}MODEL_SEED", "7")
    read_config()
    assert f"{PREFIX}{TESTS}MODEL_SEED" in os.environ
