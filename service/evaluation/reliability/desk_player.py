"""Who plays when it is a real model: asked through the gateway."""

from service.app.desks import Desk
from service.domain.errors import PalimpsestError as Refused
from service.domain.flows import ModelAsk, ModelReply
from service.domain.ledger import CallScope
from service.domain.tenancy import DEFAULT_TENANT, session_key
from service.evaluation.reliability.playing import Failed
from service.llm.failures import ModelFailure
from storage.errors import StorageError


class DeskPlayer:
    """A real model; its calls are in the ledger of the game's session."""

    def __init__(self, desk: Desk, *, model: str, session: str) -> None:
        self._desk = desk
        self._model = model
        self._session_key = session_key(DEFAULT_TENANT, session)
        facts = desk.facts_of(model)
        self.window_tokens = facts.window_tokens
        self.marker_key = desk.marker_key
        self._count = facts.count
        self._calls = 0

    async def ask(self, ask: ModelAsk) -> ModelReply:
        """Its reply. Raises Failed."""
        self._calls += 1
        scope = CallScope(
            tenant_id=DEFAULT_TENANT,
            session_key=self._session_key,
            memory_id=None,
            occasion=f"reliability:{self._calls}",
        )
        try:
            return await self._desk.gateway.call(ask, model=self._model, scope=scope)
        except (ModelFailure, Refused, StorageError) as error:
            raise Failed(str(error)) from error

    def count(self, text: str) -> int:
        """Tokens, as the model counts as far as that is known."""
        return self._count(text)
