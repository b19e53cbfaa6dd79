"""What all providers have in common."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from service.llm.providers.requests import parameters_of
from service.settings.config import Config
from tests.providers.exchange import Invalid, Request, Response
from tests.providers.scenarios import REFUSAL, THOUGHT, THOUGHT_TOKENS, Said, Scenario, Turn, half

#: The key that every provider takes here, and no other. Not like a real one.
KEY = "key-of-the-emulator"


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """How our service, and litellm, reach an emulated provider."""

    #: As litellm names it, and a memory may.
    model: str
    api_base: str
    #: Variables that litellm needs besides; for `monkeypatch.setenv`.
    environment: Mapping[str, str]
    #: What the deployment has besides, for its provider; all of its access, where it has a
    #: secret of another name than `api_key`.
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def deployment(self) -> str:
        """The name of the deployment."""
        return "emulated"

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a process of ours that asks this provider."""
        ours = {"PALIMPSEST_DEPLOYMENTS": json.dumps([self._deployment])}
        return {**self.environment, "PALIMPSEST_MODEL": self.model, **ours}

    @property
    def settings(self) -> dict[str, Any]:
        """What a `Config` is made with."""
        return {"model": self.model, "deployments": [self._deployment]}

    @property
    def _deployment(self) -> dict[str, str]:
        access = {} if "secret_access_key" in self.fields else {"api_key": KEY}
        named = {"name": self.deployment, "model": self.model, "api_base": self.api_base}
        return {**named, **access, **self.fields}

    def config(self, **more: Any) -> Config:
        """Returns a configuration that asks this provider."""
        return Config.model_validate({**self.settings, **more})

    @property
    def arguments(self) -> dict[str, Any]:
        """litellm's own arguments, for a call without our service."""
        (one,) = self.config().deployments
        return parameters_of(one)


class Provider(ABC):
    """One provider: its checks and its shapes.

    A response is made in three steps: `check` refuses what the provider would, `said` is what the
    model says in a scenario, and `whole` and `streamed` convert it into the provider's shape.
    """

    #: Our name of it, and the first part of its path here.
    name: ClassVar[str]
    #: litellm's name of a model, when no other is asked for.
    model: ClassVar[str]
    #: Of the path under the emulator's: what litellm wants in `api_base`.
    base: ClassVar[str] = ""
    #: Its names of the ends that are the same everywhere.
    finish: ClassVar[Mapping[Scenario, str]]
    #: Its other names of ends, the usual one of ODD_END first.
    natives: ClassVar[tuple[str, ...]] = ()
    #: Status of the errors that it has; what has neither this nor a `finish` it does not do.
    statuses: ClassVar[Mapping[Scenario, int]]

    def endpoint(self, url: str, model: str | None) -> Endpoint:
        """Returns how it is reached at the emulator's `url`."""
        return Endpoint(
            model=model or self.model, api_base=f"{url}/{self.name}{self.base}", environment={}
        )

    @property
    def scenarios(self) -> tuple[Scenario, ...]:
        """What it can do, in one order."""
        always = (Scenario.CUT_STREAM, Scenario.STREAM_ERROR)
        own = {*self.finish, *self.statuses, *always}
        if self.natives:
            own.add(Scenario.ODD_END)
        return tuple(one for one in Scenario if one in own)

    def aside(self, request: Request) -> Response | None:
        """Answers a request that asks no model, as litellm makes some; None if it asks one."""
        return None

    @abstractmethod
    def check(self, request: Request) -> None:
        """Raises Invalid for a request that the provider refuses."""

    @abstractmethod
    def invalid(self, error: Invalid) -> Response:
        """Returns the provider's answer to a request that it refuses."""

    @abstractmethod
    def prompt(self, request: Request) -> str:
        """Returns the text of all messages, one after the other."""

    @abstractmethod
    def is_streamed(self, request: Request) -> bool: ...

    @abstractmethod
    def failed(self, scenario: Scenario, request: Request) -> Response:
        """Returns the answer to a request that fails, by one of `statuses`."""

    @abstractmethod
    def whole(self, said: Said, request: Request) -> Response: ...

    @abstractmethod
    def streamed(self, said: Said, request: Request, stop: Scenario | None) -> Response:
        """Streams the reply; `stop` is CUT_STREAM or STREAM_ERROR, after the first part."""

    def respond(self, turn: Turn, text: str, request: Request) -> Response:
        """Returns the response to a valid request; `text` is what a model says that is well."""
        scenario = turn.scenario
        if scenario not in self.scenarios:
            raise ValueError(f"{self.name} has no {scenario.value!r}")
        if scenario in self.statuses:
            return self.failed(scenario, request)
        stops = scenario in (Scenario.CUT_STREAM, Scenario.STREAM_ERROR)
        said = self.said(Turn() if stops else turn, text)
        said = replace(said, prompt_tokens=len(self.prompt(request).split()))
        if self.is_streamed(request):
            return self.streamed(said, request, scenario if stops else None)
        if scenario is Scenario.STREAM_ERROR:
            return replace(self.failed(Scenario.OVERLOADED, request), status=500)
        return replace(self.whole(said, request), is_cut=stops)

    def said(self, turn: Turn, text: str) -> Said:
        """Returns what the model says."""
        scenario = turn.scenario
        finish = turn.native or (
            self.natives[0] if scenario is Scenario.ODD_END else self.finish[scenario]
        )
        thought = {"thought": THOUGHT, "thought_tokens": THOUGHT_TOKENS}
        match scenario:
            case Scenario.REFUSAL:
                return Said(text="", finish=finish, refusal=REFUSAL)
            case Scenario.LENGTH | Scenario.ODD_END:
                return Said(text=half(text), finish=finish)
            case Scenario.LENGTH_EMPTY | Scenario.THINKING_ONLY:
                return Said(text="", finish=finish, **thought)  # type: ignore[arg-type]
            case Scenario.EMPTY | Scenario.FILTER | Scenario.PROMPT_FILTERED:
                return Said(text="", finish=finish)
            case Scenario.THINKING:
                return Said(text=text, finish=finish, **thought)  # type: ignore[arg-type]
            case Scenario.TOOL_CALL:
                return Said(text="", finish=finish, tool={"query": "harbour"})
        return Said(text=text, finish=finish)
