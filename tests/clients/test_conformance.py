"""Every client runs every script of clients/conformance."""

import pytest

from tests.clients.drivers import CLIENTS, Client, in_repository
from tests.clients.runner import Script, files, run, scripts
from tests.clients.service import Service, serving
from tests.support.harness import Servers

CASES = [
    pytest.param(client, script, id=f"{client.name}-{script}")
    for client in CLIENTS
    for script in scripts()
]


@pytest.mark.parametrize(("client", "script"), CASES)
async def test_script(
    client: Client, script: Script, open_service: Service, servers: Servers
) -> None:
    if missing := client.missing():
        pytest.skip(f"{missing} is not installed")
    assert not client.built or in_repository(client.built).exists(), (
        f"{client.built} is missing: make test-clients builds it"
    )
    if script.service == "open":
        await run(client, open_service, script)
        return
    async with serving(servers) as service:
        await run(client, service, script)


def test_each_feature_is_that_of_its_file() -> None:
    for name, content in files().items():
        assert content["feature"].replace(" ", "_") == name
        names = [one["name"] for one in content["scripts"]]
        assert len(set(names)) == len(names)
