"""Every client runs every script of clients/conformance."""

from collections.abc import Callable

import pytest

from tests.clients.conftest import Services
from tests.clients.drivers import CLIENTS, Client, in_repository
from tests.clients.runner import Run, Script, Unsupported, files, scripts

CASES = [
    pytest.param(client, script, id=f"{client.name}-{script}")
    for client in CLIENTS
    for script in scripts()
]
Note = Callable[[str, object], None]


@pytest.mark.parametrize(("client", "script"), CASES)
async def test_script(
    client: Client, script: Script, services: Services, record_property: Note
) -> None:
    record_property("client", client.name)
    record_property("feature", script.feature)
    record_property("script", str(script))
    if missing := client.missing():
        record_property("missing", missing)
        pytest.skip(f"{client.title}: {missing} is not installed")
    assert not client.built or in_repository(client.built).exists(), (
        f"{client.built} is missing: make test-clients builds it"
    )
    try:
        async with services.of_kind(script.service) as service:
            await Run(client=client, service=service).run(script)
    except Unsupported as unsupported:
        record_property("unsupported", str(unsupported))
        pytest.skip(f"{client.title} does not support it: {unsupported}")


def test_each_feature_is_that_of_its_file() -> None:
    for name, content in files().items():
        assert content["feature"].replace(" ", "_") == name
        names = [one["name"] for one in content["scripts"]]
        assert len(set(names)) == len(names)
