"""The emulated providers, reached by the environment of each."""

from collections.abc import Iterator

import pytest

from tests.providers.server import Emulators, emulators


@pytest.fixture(scope="module")
def servers() -> Iterator[Emulators]:
    with emulators() as found:
        yield found


@pytest.fixture(autouse=True)
def reached(servers: Emulators, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of all providers; nothing is left of the test before."""
    for name, one in servers.items():
        one.script.clear()
        one.seen.clear()
        for variable, value in servers.endpoint(name).environment.items():
            monkeypatch.setenv(variable, value)
    # Otherwise the first call to Claude fetches a list.
    monkeypatch.setenv("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
