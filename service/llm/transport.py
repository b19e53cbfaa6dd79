"""Transport: one try of one call, through litellm.

litellm is imported off the event loop, since that takes seconds.
"""

import asyncio
import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from service.config import Config
from service.domain.flows import CUT_OFF, ModelAsk, Purpose
from service.domain.tokens import estimate_tokens
from service.llm.library import litellm_library
from service.llm.model_map import keeps_to_schemas
from service.llm.plans import PLAIN, Plan

#: Where a provider says when to try again.
_RETRY_AFTER = "retry-after"
#: Statuses below 500 that may pass: timeout, too early, too many requests.
_PASSING = frozenset({408, 425, 429})


#: Purposes whose replies must not be taken for whole when they are not.
_MARKED = frozenset({Purpose.REVISE, Purpose.CONSOLIDATE})


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
    #: As the provider reports them, else our estimate.
    input_tokens: int
    #: As the provider reports them, else our estimate.
    output_tokens: int
    #: None when the provider does not say.
    cached_tokens: int | None
    #: None when the provider does not say.
    cache_write_tokens: int | None
    #: In millionths of a US dollar; None when no price is known.
    cost_micro_usd: int | None


class Transport(Protocol):
    """Makes one try of a call."""

    async def complete(self, ask: ModelAsk, model: str, plan: Plan) -> Completion:
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
                self._litellm = await asyncio.to_thread(litellm_library)

    def structured(self, model: str) -> bool:
        """Whether the model writes its reply by a JSON Schema.

        By litellm's list, or the configuration for an endpoint of one's own.
        The same from the first call on: a step that is made again must be asked for in
        the same form.
        """
        if model.startswith("offline/"):
            return False
        if self._is_own(model) and self._config.model_structured_output:
            return True
        return keeps_to_schemas(model)

    def _is_own(self, model: str) -> bool:
        return model.startswith("openai/") and bool(self._config.model_base_url)

    async def complete(self, ask: ModelAsk, model: str, plan: Plan = PLAIN) -> Completion:
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
            raise _failure(litellm, error, model) from error
        if not getattr(response, "choices", None):
            # Servers of one's own answer like this while they load, or filter a prompt.
            raise ModelFailure("the model's response holds no reply", retryable=True)
        return _completion(litellm, response, ask, model)

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
        if ask.reply_schema is not None and self.structured(model):
            # A copy: providers' adapters change what they are given.
            shape = {"name": "revision", "schema": copy.deepcopy(ask.reply_schema)}
            arguments["response_format"] = {"type": "json_schema", "json_schema": shape}
        if self._is_own(model):
            arguments["api_base"] = self._config.model_base_url
            key = self._config.model_api_key
            # Servers of one's own often want none, the protocol always does.
            arguments["api_key"] = key.get_secret_value() if key else "none"
        return arguments


def _completion(litellm: Any, response: Any, ask: ModelAsk, model: str) -> Completion:
    choice = response.choices[0]
    text = _storable(choice.message.content or "")
    if ask.purpose in _MARKED and getattr(choice, "finish_reason", None) == "length":
        text += CUT_OFF
    usage = getattr(response, "usage", None)
    details = getattr(usage, "prompt_tokens_details", None)
    return Completion(
        text=text,
        model=model,
        # Some servers count nothing; litellm then says 0, which no prompt has.
        input_tokens=getattr(usage, "prompt_tokens", None) or estimate_tokens(ask.text),
        output_tokens=getattr(usage, "completion_tokens", None) or estimate_tokens(text),
        cached_tokens=getattr(details, "cached_tokens", None),
        cache_write_tokens=getattr(details, "cache_creation_tokens", None),
        cost_micro_usd=_cost(litellm, response, model),
    )


def _storable(text: str) -> str:
    """A reply without what no database keeps: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "").encode(errors="replace").decode()


def _cost(litellm: Any, response: Any, model: str) -> int | None:
    if model.startswith("offline/"):
        return 0
    try:
        cost = litellm.completion_cost(completion_response=response, model=model)
    except Exception:
        # Raised, in several forms, for every model without a price.
        return None
    return round(float(cost) * 1_000_000)


def _failure(litellm: Any, error: Exception, model: str) -> Exception:
    """What a failed call means to us; an error that is no provider's comes back as it is.

    The message names the kind and the status only: what providers write may repeat the
    prompt or the key.
    """
    kinds = litellm.exceptions
    if isinstance(error, kinds.APIConnectionError | kinds.Timeout | TimeoutError):
        return ModelFailure(
            f"the model could not be reached: {type(error).__name__}", retryable=True
        )
    # The ancestor of all that litellm raises for a provider, in its own name or not.
    if not isinstance(error, kinds.openai.OpenAIError):
        return error
    status = getattr(error, "status_code", None)
    said = f"{type(error).__name__}, status {status}"
    # By status, not by class: litellm has classes for a few of them only.
    if not isinstance(status, int) or status >= 500 or status in _PASSING:
        return ModelFailure(
            f"the model failed: {said}", retryable=True, retry_after_seconds=_retry_after(error)
        )
    if isinstance(error, kinds.BadRequestError) and not _has_provider(litellm, model):
        return ModelFailure(
            f"no provider of the model {model!r} is known; name it as provider/name",
            retryable=False,
        )
    return ModelFailure(f"the model refused: {said}", retryable=False)


def _has_provider(litellm: Any, model: str) -> bool:
    try:
        litellm.get_llm_provider(model=model)
    except litellm.exceptions.BadRequestError:
        return False
    return True


def _retry_after(error: Exception) -> float | None:
    headers: Mapping[str, str] = getattr(error, "litellm_response_headers", None) or {}
    value = headers.get(_RETRY_AFTER)
    try:
        return None if value is None else max(float(value), 0.0)
    except ValueError:
        # A date; the ordinary backoff will do.
        return None
