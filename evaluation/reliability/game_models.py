"""Defines the scripted game model; a real one is in `gateway_game_model`."""

import asyncio

from evaluation.reliability.scripted import ScriptedModel
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.domain.prompting.tokens import estimate_tokens

#: Tokens of a prompt and its reply together: what a worker takes for an unknown model too.
SCRIPTED_WINDOW_TOKENS = 32_768


class ScriptedGameModel:
    """The scripted model, asked without a detour."""

    #: It is no secret: the scripted model obeys nothing.
    marker_key = b"reliability"

    def __init__(self, model: ScriptedModel) -> None:
        self.window_tokens = SCRIPTED_WINDOW_TOKENS
        self._model = model

    async def ask(self, ask: ModelRequest) -> ModelReply:
        """Returns its reply; tokens are estimated."""
        # Games that wait for the service continue meanwhile.
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
