"""What a server asks the database for one tenant."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from tests.integration.support.statements import Statement, statements


class TenantStatements:
    """The statements in transactions of one tenant, of servers in the process of the test."""

    def __init__(self, sent: list[Statement], tenant_id: UUID) -> None:
        self._sent = sent
        self._tenant = str(tenant_id)

    def take(self) -> list[str]:
        """Returns the texts since the last time, sorted: some are sent at once."""
        found: list[str] = []
        of_tenant: dict[int, bool] = {}
        for one in self._sent:
            connection = id(one.connection)
            if "app.tenant" in one:
                said = f"{one} {one.values}"
                of_tenant[connection] = self._tenant in said
            elif one.startswith("BEGIN"):
                of_tenant[connection] = False
            if of_tenant.get(connection):
                found.append(str(one))
        self._sent.clear()
        return sorted(found)


@contextmanager
def statements_of(tenant_id: UUID) -> Iterator[TenantStatements]:
    """Records what is sent meanwhile."""
    with statements() as sent:
        yield TenantStatements(sent, tenant_id)
