"""The offline model as a provider of litellm's.

So it passes through the same gateway, parser, ledger and cache accounting as every
other model. It is given the ask's content beside the prompt.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from service.domain.tokens import estimate_tokens
from service.llm.offline.model import complete

PROVIDER = "offline"

_content: ContextVar[object] = ContextVar("palimpsest_ask_content")


@contextmanager
def asking(content: object) -> Iterator[None]:
    """Gives the offline model the content of the ask that is made meanwhile."""
    token = _content.set(content)
    try:
        yield
    finally:
        _content.reset(token)


def register(litellm: Any) -> None:
    """Makes `offline/…` a provider of `litellm`."""

    class Offline(litellm.CustomLLM):  # type: ignore[misc]
        async def acompletion(self, *_: Any, **arguments: Any) -> Any:
            prompt = "".join(message["content"] for message in arguments["messages"])
            text = complete(_content.get())
            response = arguments["model_response"]
            response.choices[0].message.content = text
            response.choices[0].finish_reason = "stop"
            response.usage = litellm.Usage(
                prompt_tokens=estimate_tokens(prompt),
                completion_tokens=estimate_tokens(text),
                total_tokens=estimate_tokens(prompt) + estimate_tokens(text),
            )
            return response

    entry = {"provider": PROVIDER, "custom_handler": Offline()}
    litellm.custom_provider_map = [*litellm.custom_provider_map, entry]
    litellm.utils.custom_llm_setup()
