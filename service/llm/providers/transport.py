"""Makes one try of one call, through litellm."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any, Protocol

import structlog

from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.replies import storable
from service.domain.prompting.tokens import estimate_tokens
from service.domain.spend.prices import MICRO, cost_micro_usd
from service.llm.providers import recording
from service.llm.providers.ends import read_end
from service.llm.providers.failures import (
    failure_of,
    no_reply,
    refused_form,
    secrets_of,
    shown_words,
)
from service.llm.providers.forms import Refusals, Shape
from service.llm.providers.library import hears_answers, litellm_library, unrecorded
from service.llm.providers.native import NativeAnswer, listening
from service.llm.providers.plans import PLAIN, CallPlan, deployment_name
from service.llm.providers.prices import Prices
from service.llm.providers.requests import Requests, parameters_of
from service.llm.providers.streams import STREAMED, BrokenStream, whole_response
from service.llm.providers.usage import Usage, reported_micro_usd, usage_of
from service.settings.config import Config

_log = structlog.get_logger("palimpsest.llm")

#: The longest model name of a server's that litellm gets: it searches for a price by the name, with
#: hundreds of regular expressions, and remembers it.
MAX_NAME_CHARACTERS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion(Usage):
    """A reply, with its usage and cost."""

    text: str
    #: The model that was called, as provider/name.
    model: str
    #: In millionths of a US dollar; None if no price is known.
    cost_micro_usd: int | None
    #: How the reply ended.
    end: End = End.COMPLETE
    #: The words of a refusal, or the provider's own reason for the end.
    said: str = ""


class Transport(Protocol):
    """Makes one try of a call."""

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        """Returns the model's reply. Raises ModelFailure."""
        ...


class LitellmTransport:
    """Calls models by litellm's names, and the offline model."""

    def __init__(self, config: Config, *, falls_back: bool = True) -> None:
        """Without `falls_back` a request whose form is refused fails."""
        self._config = config
        self._falls_back = falls_back
        self._prices = Prices(config)
        self.requests = Requests(config, self._prices)
        self._refusals = Refusals()
        self._deployments = {one.name: one for one in config.deployments}
        self._secrets = secrets_of(config)
        self._litellm: Any = None
        self._importing = asyncio.Lock()

    async def warm(self) -> None:
        """Imports litellm, off the event loop, since that takes seconds."""
        async with self._importing:
            if self._litellm is None:
                self._litellm = await asyncio.to_thread(litellm_library)

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan = PLAIN) -> Completion:
        """Makes one try. Raises ModelFailure."""
        if model.startswith("offline/"):
            return self._offline(ask, model)
        await self.warm()
        native = NativeAnswer()
        response = await self._replied(ask, model, plan, native)
        return self._completion(response, ask, model, native.ended)

    async def _replied(
        self, ask: ModelRequest, model: str, plan: CallPlan, native: NativeAnswer
    ) -> Any:
        """Returns litellm's response; tries again in another form if one is refused."""
        deployment = deployment_name(model, plan.deployment)
        profile = self.requests.profiles.of(model)
        shape = self._refusals.allowed(deployment, ask, self.requests.shape(ask, model), profile)
        # litellm's own timeout applies between two parts of a response, not to all of it.
        deadline = asyncio.get_running_loop().time() + self._config.model_timeout_seconds
        while True:
            try:
                with unrecorded(), listening(native):
                    async with asyncio.timeout_at(deadline):
                        return await self._try(ask, model, plan, shape, native)
            except Exception as error:
                # litellm raises the errors of fifty providers; any other is a defect.
                refused = refused_form(error, _texts(ask), native) if self._falls_back else None
                lesser = None
                if refused is not None:
                    without = self._refusals.without
                    lesser = without(deployment, model, ask, shape, refused, profile)
                if lesser is None:
                    raise failure_of(
                        self._litellm,
                        error,
                        model,
                        native=native,
                        secrets=self._secrets,
                        prompt=_texts(ask),
                    ) from error
                shape = lesser

    async def _try(
        self, ask: ModelRequest, model: str, plan: CallPlan, shape: Shape, native: NativeAnswer
    ) -> Any:
        arguments = self.requests.arguments(ask, model, plan, shape)
        try:
            response = await self._sent(arguments, model, plan, shape, native)
        except Exception as error:
            await self._record(ask, model, arguments, error=error, native=native)
            raise
        await self._record(ask, model, arguments, response=response, native=native)
        return response

    async def _sent(
        self,
        arguments: dict[str, Any],
        model: str,
        plan: CallPlan,
        shape: Shape,
        native: NativeAnswer,
    ) -> Any:
        if plan.deployment:
            reached = parameters_of(self._deployments[plan.deployment])
            arguments = {**reached, **arguments, "model": reached["model"]}
        on_text = plan.on_text
        streams = self.requests.profiles.of(model).streams and not shape.has_schema
        if on_text is not None and streams and hears_answers():
            stream = await self._litellm.acompletion(**arguments, **STREAMED)
            response = await whole_response(
                self._litellm, stream, lambda text: on_text(storable(text)), native
            )
        else:
            response = await self._litellm.acompletion(**arguments)
        if native.has_error and native.status == HTTPStatus.OK:
            # litellm mistakes some errors for the end of a reply.
            raise self._litellm.APIError(
                status_code=native.error_status, message="", llm_provider="", model=model
            )
        return response

    async def _record(
        self, ask: ModelRequest, model: str, arguments: dict[str, Any], **came: Any
    ) -> None:
        """Writes an exchange if that is configured; no call fails if it cannot be written."""
        folder = self._config.record
        if folder is None:
            return
        try:
            await asyncio.to_thread(
                recording.write,
                folder,
                model=model,
                ask=ask,
                arguments=arguments,
                extras=self.requests.extras(ask, model),
                secrets=self._secrets,
                **came,
            )
        except OSError as error:
            _log.warning("an exchange is not recorded", cause=str(error))

    async def replay(self, recorded: recording.RecordedExchange) -> Completion:
        """Returns the reply of a recorded exchange. Raises ModelFailure, NoRecord."""
        await self.warm()
        native = NativeAnswer.recorded(recorded.native.model_dump())
        if recorded.error is not None:
            raise failure_of(
                self._litellm,
                _error_of(self._litellm, recorded.error, recorded.model),
                recorded.model,
                native=native,
                secrets=self._secrets,
                prompt=_texts(recorded.ask),
            )
        try:
            response = self._litellm.ModelResponse(**(recorded.response or {}))
        except (TypeError, ValueError, AttributeError, KeyError):
            raise recording.NoRecord("its response is not a model's") from None
        return self._completion(response, recorded.ask, recorded.model, native.ended)

    def _offline(self, ask: ModelRequest, model: str) -> Completion:
        """Calls the offline model, which is fast and does not need litellm."""
        from service.llm.offline.model import complete

        text = storable(complete(ask))
        read, written = estimate_tokens(ask.text), estimate_tokens(text)
        return Completion(
            text=text,
            model=model,
            input_tokens=read,
            output_tokens=written,
            cached_tokens=None,
            cache_write_tokens=None,
            cost_micro_usd=cost_micro_usd(
                self._prices.of(model),
                input_tokens=read,
                cached=0,
                written=0,
                output_tokens=written,
            ),
        )

    def _completion(
        self, response: Any, ask: ModelRequest, model: str, seen: tuple[str, str] = ("", "")
    ) -> Completion:
        if not getattr(response, "choices", None):
            raise no_reply(model)
        text = storable(response.choices[0].message.content or "")
        end, said = read_end(response, text, seen)
        usage = usage_of(response, ask, text)
        return Completion(
            **asdict(usage),
            text=text,
            model=model,
            cost_micro_usd=self._cost(response, usage, model),
            end=end,
            said=shown_words(said, secrets=self._secrets, prompt=_texts(ask)),
        )

    def _cost(self, response: Any, usage: Usage, model: str) -> int | None:
        reported = reported_micro_usd(response, self._prices.served.name(model))
        if reported is not None and not self._prices.are_set(model):
            return reported
        name = self._prices.listed_as(model)
        listed = None if name is None else listed_cost(self._litellm, response, name)
        if listed is not None:
            return listed
        return cost_micro_usd(
            self._prices.of(model),
            input_tokens=usage.input_tokens,
            cached=usage.cached_tokens or 0,
            written=usage.cache_write_tokens or 0,
            output_tokens=usage.output_tokens,
        )


def _error_of(litellm: Any, said: dict[str, Any], model: str) -> Exception:
    """Returns the recorded error, as litellm raises it."""
    kind = getattr(litellm.exceptions, str(said.get("name")), None)
    values: dict[str, Any] = {
        "message": str(said.get("message")),
        "model": model,
        "llm_provider": model.partition("/")[0],
    }
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            error: Exception = kind(**values)
        except TypeError:
            error = litellm.exceptions.APIError(status_code=said.get("status") or 500, **values)
    elif said.get("name") == BrokenStream.__name__:
        error = BrokenStream(values["message"])
    else:
        error = TimeoutError(values["message"])
    return error


def _texts(ask: ModelRequest) -> Sequence[str]:
    return [segment.text for segment in ask.segments]


def listed_cost(litellm: Any, response: Any, model: str) -> int | None:
    """Returns the cost by litellm's list, which knows off-peak hours; None if it has no price."""
    if len(str(getattr(response, "model", None) or "")) > MAX_NAME_CHARACTERS:
        response.model = model
    try:
        cost = litellm.completion_cost(completion_response=response, model=model)
    except Exception:
        # litellm raises many kinds of errors for a model without a price.
        return None
    return round(float(cost) * MICRO)
