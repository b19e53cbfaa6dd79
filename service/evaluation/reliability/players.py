"""Who plays: the scripted model in this process, or a real one through the gateway."""

import asyncio

from service.app import Desk
from service.domain.errors import PalimpsestError as Refused
from service.domain.flows import ModelAsk, ModelReply
from service.domain.ledger import CallScope
from service.domain.tenancy import DEFAULT_TENANT, session_key
from service.domain.tokens import estimate_tokens
from service.evaluation.reliability.playing import Failed
from service.evaluation.reliability.scripted import ScriptedModel
from service.llm.transport import ModelFailure
from storage.errors import StorageError

#: Tokens of a prompt and its reply together: what a worker takes for an unknown model too.
SCRIPTED_WINDOW_TOKENS = 32_768


class ScriptedPlayer:
    """The scripted model, asked without a detour."""

    #: It is no secret: the scripted model obeys nothing.
    marker_key = b"reliability"

    def __init__(self, model: ScriptedModel) -> None:
        self.window_tokens = SCRIPTED_WINDOW_TOKENS
        self._model = model

    async def ask(self, ask: ModelAsk) -> ModelReply:
        """Its reply; tokens are estimated."""
        # Games that wait for the service go on meanwhile.
        await asyncio.sleep(0)
        prompt = ask.text
        text = self._model.reply(prompt)
        return ModelReply(
            text=text,
            model="scripted",
            input_tokens=estimate_tokens(prompt),
            output_tokens=estimate_tokens(text),
        )

    def count(self, text: str) -> int:
        """Tokens, by the estimate."""
        return estimate_tokens(text)


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
