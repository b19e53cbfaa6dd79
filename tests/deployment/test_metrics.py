"""What is served to Prometheus, by Prometheus's own checker."""

import shutil
import subprocess
import urllib.request

import pytest

from tests.deployment.watching import free_port
from tests.support.harness import Servers, api, eventually

NEEDED = "Prometheus is not installed: run `make setup-deploy`"
#: OpenTelemetry's convention has it so, and Prometheus's style keeps its end for histograms.
KNOWN = {"db_client_connection_count"}


@pytest.fixture(scope="module")
def scrape(servers: Servers) -> str:
    """Returns what an API server says of itself."""
    assert shutil.which("promtool"), NEEDED
    listen = f"127.0.0.1:{free_port()}"

    def said() -> str:
        with urllib.request.urlopen(f"http://{listen}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    with api(servers.new_database(), PALIMPSEST_METRICS_LISTEN=listen):
        eventually("the deployment is measured", lambda: "palimpsest_queue_seconds" in said())
        return said()


def check(scrape: str) -> set[str]:
    """Returns the metrics of which the checker finds something; releases differ in its words."""
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=scrape, capture_output=True, text=True, check=False
    )
    # It ends with 3 where it finds a matter of style, and with 1 where it cannot read.
    assert done.returncode in (0, 3), done.stderr
    return {line.partition(" ")[0] for line in (done.stdout + done.stderr).strip().splitlines()}


def test_the_checker_finds_nothing_to_mend(scrape: str) -> None:
    assert check(scrape) == KNOWN


def test_the_checker_would_find_a_mistake(scrape: str) -> None:
    wrong = scrape.replace("palimpsest_ready", "palimpsest_ready_total")
    assert check(wrong) - KNOWN
