"""Fixtures: one service for all clients, and what a run writes for the table."""

import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from storage.engine.database import Database
from tests.clients.keyed import Keyed, serving_keyed
from tests.clients.runner import scripts
from tests.clients.service import Service, serving
from tests.clients.table import RESULTS
from tests.support.harness import Servers

#: Results of scripts by client.
_FOUND: dict[str, list[dict[str, Any]]] = defaultdict(list)


class Services:
    """The services of a run: one of each kind, but `own`, which is new for each script."""

    def __init__(self, servers: Servers, stack: AsyncExitStack) -> None:
        self._servers = servers
        self._stack = stack
        self._started: dict[str, Service] = {}

    @asynccontextmanager
    async def of_kind(self, kind: str) -> AsyncIterator[Service]:
        """Yields a service, which is started when it is first asked for."""
        if kind == "own":
            async with serving(self._servers, kind) as service:
                yield service
            return
        if kind not in self._started:
            started = serving(self._servers, kind)
            self._started[kind] = await self._stack.enter_async_context(started)
        yield self._started[kind]


@pytest.fixture(scope="module")
async def services(servers: Servers) -> AsyncIterator[Services]:
    """Yields the services, which all clients share, of one file: its databases end with it."""
    async with AsyncExitStack() as stack:
        yield Services(servers, stack)


@pytest.fixture
async def keyed(url: str, database: Database) -> AsyncIterator[Keyed]:
    """Yields a server over HTTP of the test's own, which requires keys."""
    async with serving_keyed(url, database) as found:
        yield found


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes how a script ended: `test_script` says which it is."""
    found = dict(report.user_properties)
    if report.when != "call" or "client" not in found or "missing" in found:
        return
    _FOUND[str(found["client"])].append({**found, "outcome": report.outcome})


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the results of clients that ran all scripts; other clients are left out."""
    if hasattr(session.config, "workerinput"):
        return
    whole = {name: found for name, found in _FOUND.items() if len(found) == len(scripts())}
    if whole:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        ordered = {name: sorted(whole[name], key=lambda one: str(one["script"])) for name in whole}
        RESULTS.write_text(json.dumps(ordered, indent=1))
