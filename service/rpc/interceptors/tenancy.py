"""The tenant and the identity of each call; `authentication` verifies them.

The tenant comes from authentication, never from a request.
"""

from uuid import UUID

from service.domain.access.identity import current_identity as current_identity


def current_tenant() -> UUID:
    """Returns the tenant of the current call."""
    return current_identity().tenant_id
