"""Plays games with a real model, through the gateway."""

from evaluation.reliability.playing import Failed
from service.app.gateways import ModelAccess
from service.domain.calls.ledger import CallScope
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.domain.values.errors import PalimpsestError as Refused
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.llm.providers.failures import ModelFailure
from storage.engine.errors import StorageError


class GatewayGameModel:
    """A real model; its calls are in the ledger of the game's session."""

    def __init__(self, access: ModelAccess, *, model: str, session: str) -> None:
        self._access = access
        self._model = model
        self._session_key = session_key(DEFAULT_TENANT, session)
        facts = access.facts_of(model)
        self.window_tokens = facts.window_tokens
        self.marker_key = access.marker_key
        self._count = facts.count
        self._calls = 0

    async def ask(self, ask: ModelRequest) -> ModelReply:
        """Returns its reply. Raises Failed."""
        self._calls += 1
        scope = CallScope(
            tenant_id=DEFAULT_TENANT,
            session_key=self._session_key,
            memory_id=None,
            occasion=f"reliability:{self._calls}",
        )
        try:
            return await self._access.gateway.call(ask, model=self._model, scope=scope)
        except (ModelFailure, Refused, StorageError) as error:
            raise Failed(str(error)) from error

    def count(self, text: str) -> int:
        """Tokens, as the model counts as far as that is known."""
        return self._count(text)
