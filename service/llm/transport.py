"""Transport: one try of one call, through litellm.

litellm knows every provider's protocol, usage fields and prices. Its own retries,
caches and callbacks stay off: those are ours. It is imported late and off the event
loop, since that takes seconds.
"""

import asyncio
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from service.config import Config
from service.domain.flows import ModelAsk

#: Where a provider says when to try again.
_RETRY_AFTER = "retry-after"


class ModelFailure(Exception):
    """A call that brought no reply; the message is one sentence without prompt text."""

    def __init__(
        self, message: str, *, retryable: bool, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """A reply, with what the provider says it cost."""

    text: str
    #: The model that was asked, as provider/name.
    model: str
    input_tokens: int
    output_tokens: int
    #: None when the provider does not say.
    cached_tokens: int | None
    #: None when the provider does not say.
    cache_write_tokens: int | None
    #: In millionths of a US dollar; None when no price is known.
    cost_micro_usd: int | None


class Transport(Protocol):
    """Makes one try of a call."""

    async def complete(self, ask: ModelAsk, model: str) -> Completion:
        """The model's reply. Raises ModelFailure."""
        ...


class LitellmTransport:
    """Calls models by litellm's names, among them the offline model."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._litellm: Any = None
        self._importing = asyncio.Lock()

    async def warm(self) -> None:
        """Imports litellm now, so that the first call does not wait for it."""
        async with self._importing:
            if self._litellm is None:
                self._litellm = await asyncio.to_thread(_import_litellm)

    async def complete(self, ask: ModelAsk, model: str) -> Completion:
        """One try. Raises ModelFailure."""
        await self.warm()
        litellm = self._litellm
        assert litellm is not None, "warm() imported it"
        from service.llm.offline_provider import asking

        try:
            with asking(ask.content):
                response = await litellm.acompletion(**self._arguments(ask, model))
        except Exception as error:
            # litellm raises the errors of fifty providers; what is none of them is a
            # defect and goes on as it is.
            raise _failure(litellm, error) from error
        return _completion(litellm, response, model)

    def _arguments(self, ask: ModelAsk, model: str) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": ask.text}],
            "max_tokens": ask.max_output_tokens,
            "timeout": self._config.model_timeout_seconds,
            "num_retries": 0,
            "max_retries": 0,
            "caching": False,
        }
        if model.startswith("openai/") and self._config.model_base_url:
            arguments["api_base"] = self._config.model_base_url
            key = self._config.model_api_key
            # Servers of one's own often want none, the protocol always does.
            arguments["api_key"] = key.get_secret_value() if key else "none"
        return arguments


def _import_litellm() -> Any:
    # Nothing is fetched: neither the price list nor anybody's tokenizer.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    litellm: Any = importlib.import_module("litellm")
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.drop_params = True
    from service.llm.offline_provider import register

    register(litellm)
    return litellm


def _completion(litellm: Any, response: Any, model: str) -> Completion:
    usage = response.usage
    details = getattr(usage, "prompt_tokens_details", None)
    return Completion(
        text=response.choices[0].message.content or "",
        model=model,
        input_tokens=usage.prompt_tokens or 0,
        output_tokens=usage.completion_tokens or 0,
        cached_tokens=getattr(details, "cached_tokens", None),
        cache_write_tokens=getattr(details, "cache_creation_tokens", None),
        cost_micro_usd=_cost(litellm, response, model),
    )


def _cost(litellm: Any, response: Any, model: str) -> int | None:
    if model.startswith("offline/"):
        return 0
    try:
        cost = litellm.completion_cost(completion_response=response, model=model)
    except Exception:
        # Raised, in several forms, for every model without a price.
        return None
    return round(float(cost) * 1_000_000)


def _failure(litellm: Any, error: Exception) -> Exception:
    kinds = litellm.exceptions
    retryable = (
        kinds.RateLimitError,
        kinds.Timeout,
        kinds.APIConnectionError,
        kinds.InternalServerError,
        kinds.ServiceUnavailableError,
        TimeoutError,
    )
    final = (
        kinds.AuthenticationError,
        kinds.PermissionDeniedError,
        kinds.NotFoundError,
        kinds.BadRequestError,
        kinds.UnprocessableEntityError,
    )
    if isinstance(error, retryable):
        return ModelFailure(
            f"the model could not be reached: {type(error).__name__}",
            retryable=True,
            retry_after_seconds=_retry_after(error),
        )
    if isinstance(error, final):
        return ModelFailure(f"the model refused: {type(error).__name__}", retryable=False)
    if isinstance(error, kinds.APIError):
        return ModelFailure(f"the model failed: {type(error).__name__}", retryable=True)
    return error


def _retry_after(error: Exception) -> float | None:
    headers: Mapping[str, str] = getattr(error, "litellm_response_headers", None) or {}
    value = headers.get(_RETRY_AFTER)
    try:
        return None if value is None else max(float(value), 0.0)
    except ValueError:
        # A date; the ordinary backoff will do.
        return None
