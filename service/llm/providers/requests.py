"""Builds litellm's arguments for a call, by its model's profile and settings."""

import copy
import json
from typing import Any

import structlog

from service.domain.prompting.faults import ADVICE, PHRASES, Fault
from service.domain.prompting.flows import ModelRequest, Purpose
from service.llm.providers.failures import ModelFailure
from service.llm.providers.forms import Shape, response_format, shape_of
from service.llm.providers.model_map import provider_of
from service.llm.providers.plans import CallPlan
from service.llm.providers.prices import Prices
from service.llm.providers.profiles import BUDGET_TOKENS, Profile, Profiles
from service.llm.providers.renderers import render
from service.llm.providers.settings import purposes_of, setting_of, values_of
from service.settings.config import Config
from service.settings.deployments import Deployment
from service.settings.models import CallSetting, matching
from service.settings.profiles import Effort, Extras, ProfileOverride, Sampling

_log = structlog.get_logger("palimpsest.llm")

#: Warnings that are remembered, so that each is logged once; then all are forgotten.
MAX_WARNED = 1000
#: The default window of Ollama's models on most machines, in tokens.
LEAST_OLLAMA_WINDOW = 4_096
#: More bytes than a token has in nearly every text: European prose has four.
MANY_BYTES = 6


class Requests:
    """Builds the requests of one process."""

    def __init__(self, config: Config, prices: Prices, *, warns: bool = True) -> None:
        """`warns`: whether settings that a model cannot take are logged, once each."""
        self._config = config
        self._prices = prices
        self.profiles = Profiles(config)
        self._warns = warns
        self._warned: set[tuple[str, str]] = set()
        #: The largest window requested so far of each of Ollama's models.
        self._windows: dict[str, int] = {}

    def output_settings(self, model: str, purpose: Purpose) -> bytes:
        """Returns what is configured and affects the replies to a purpose's calls, for their keys.

        Canonical; empty when nothing is set, so that keys are as they always were.
        """
        values = values_of(self._config, model, purpose)
        override: ProfileOverride | None = matching(self._config.model_profiles, model)
        if override is not None and override.headroom_tokens is not None:
            values["headroom_tokens"] = override.headroom_tokens
        if not values:
            return b""
        return b"settings:" + json.dumps(values, sort_keys=True, separators=(",", ":")).encode()

    def reply_tokens(self, ask: ModelRequest, model: str) -> int:
        """Returns the bound that a call's reply is sent with, thinking included."""
        if model.startswith("offline/"):
            return ask.max_output_tokens
        profile, setting = self.profiles.of(model), setting_of(self._config, model, ask.purpose)
        effort = self._effort(model, profile, setting)
        bound = setting.max_output_tokens or ask.max_output_tokens + profile.headroom(effort)
        if profile.has_budget and effort is not Effort.NONE:
            bound = max(bound, BUDGET_TOKENS[effort] + ask.max_output_tokens)
        return min(bound, profile.max_output_tokens or bound)

    def besides(self, model: str) -> int:
        """Returns the tokens of the window that thinking may use, at most, for any purpose."""
        profile = self.profiles.of(model)
        found = []
        for purpose in (Purpose.REVISE, *purposes_of(self._config, model)):
            setting = setting_of(self._config, model, purpose)
            effort = self._effort(model, profile, setting)
            found.append(setting.max_output_tokens or profile.headroom(effort))
        return min(max(found), profile.window_tokens // 2)

    def extras(self, ask: ModelRequest, model: str) -> frozenset[str]:
        """Returns the names of a call's provider-specific fields; their values may be secrets."""
        setting = setting_of(self._config, model, ask.purpose)
        return frozenset(setting.extra or setting.extra_body or ())

    def shape(self, ask: ModelRequest, model: str) -> Shape:
        """Returns the form in which the reply is requested, by the profile alone."""
        profile = self.profiles.of(model)
        effort = self._effort(model, profile, setting_of(self._config, model, ask.purpose))
        return shape_of(ask, profile, effort)

    def arguments(
        self, ask: ModelRequest, model: str, plan: CallPlan, shape: Shape
    ) -> dict[str, Any]:
        """Returns litellm's arguments. Raises ModelFailure if the prompt cannot fit."""
        profile, setting = self.profiles.of(model), setting_of(self._config, model, ask.purpose)
        rendered = render(
            ask.segments,
            plan.marks,
            cache_key=plan.cache_key,
            model=model,
            prices=self._prices.of(model),
            system=shape.system,
        )
        said, body = self._sampling(model, profile, setting)
        effort = self._thinking(model, profile, setting)
        extra = setting.extra or setting.extra_body or {}
        if profile.extras is Extras.ARGUMENTS:
            said |= extra
        else:
            body |= extra
        if effort and profile.effort_in_body:
            body = {**effort, **body}
        else:
            said = {**effort, **said}
        is_ollamas = provider_of(self._prices.served.name(model)).startswith("ollama")
        if is_ollamas and "num_ctx" not in said:
            said["num_ctx"] = self._window(ask, model)
        body |= rendered.pop("extra_body", {})
        schema = copy.deepcopy(ask.reply_schema)
        form = None if schema is None else response_format(shape.form, schema)
        return {
            **said,
            **rendered,
            **({"extra_body": body} if body else {}),
            **({"response_format": form} if form else {}),
            **({} if plan.deployment else self._own_endpoint(model)),
            "model": model,
            profile.bound: self.reply_tokens(ask, model),
            "timeout": self._config.model_timeout_seconds,
            "num_retries": 0,
            "max_retries": 0,
            "caching": False,
        }

    def _window(self, ask: ModelRequest, model: str) -> int:
        """Returns the window to request of Ollama, which silently truncates longer prompts.

        Another window reloads the model, and a large one uses memory. So it doubles with the
        longest call so far, up to the model's own, and never shrinks. Raises ModelFailure if the
        prompt alone is certainly longer than that.
        """
        longest = self.profiles.of(model).window_tokens
        text_bytes = len(ask.text.encode())
        if text_bytes // MANY_BYTES > longest:
            raise ModelFailure(
                f"{model} {PHRASES[Fault.TOO_LONG]} (a prompt of {text_bytes} bytes, a window of"
                f" {longest} tokens); {ADVICE[Fault.TOO_LONG]}",
                retryable=False,
                fault=Fault.TOO_LONG,
            )
        # JSON and Chinese have two bytes a token; in many vocabularies each digit is a token.
        digits = sum(ask.text.count(digit) for digit in "0123456789")
        needed = (text_bytes + digits) // 2 + self.reply_tokens(ask, model)
        size = self._windows.get(model, LEAST_OLLAMA_WINDOW)
        while size < needed:
            size *= 2
        if model not in self._windows and len(self._windows) >= MAX_WARNED:
            self._windows.clear()
        self._windows[model] = size = min(size, longest)
        return size

    def _own_endpoint(self, model: str) -> dict[str, Any]:
        if not (model.startswith("openai/") and self._config.model_base_url):
            return {}
        key = self._config.model_api_key
        # The protocol always has a key; servers of one's own often ignore it.
        shown = key.get_secret_value() if key else "none"
        return {"api_base": self._config.model_base_url, "api_key": shown}

    def _sampling(
        self, model: str, profile: Profile, setting: CallSetting
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns seed, temperature and top_p: as arguments, and as fields of the body."""
        said: dict[str, Any] = {}
        body: dict[str, Any] = {}
        thinks = self._effort(model, profile, setting) is not Effort.NONE
        is_fixed = profile.sampling is Sampling.NEVER or (
            profile.sampling is Sampling.UNTHINKING and thinks
        )
        for name in ("seed", "temperature", "top_p"):
            value = getattr(setting, name)
            if value is None:
                continue
            if name in profile.refuses or (is_fixed and name != "seed"):
                why = " while it thinks" if profile.sampling is Sampling.UNTHINKING else ""
                self._warn(model, name, f"{model} takes no {name}{why}: it is left out")
            elif name == "seed" and profile.seed_in_body:
                body["random_seed"] = value
            else:
                said[name] = value
        return said, body

    def _thinking(self, model: str, profile: Profile, setting: CallSetting) -> dict[str, Any]:
        """Returns the arguments for how much to think; empty if that is not or cannot be set."""
        if setting.reasoning_effort is None or not profile.effort_levels:
            return {}
        effort = self._effort(model, profile, setting)
        is_off = effort is Effort.NONE
        if is_off and profile.off_by_thinking and profile.default_effort is not Effort.NONE:
            # litellm sends nothing for "none", and the model would think.
            return {"thinking": {"type": "disabled"}}
        if is_off and (profile.off_by_thinking or profile.has_budget):
            return {}
        return {"reasoning_effort": effort.value}

    def _effort(self, model: str, profile: Profile, setting: CallSetting) -> Effort:
        """Returns how much the model thinks: the level nearest to the one that is set."""
        wanted, levels = setting.reasoning_effort, profile.effort_levels
        if wanted is None or (not levels and wanted is profile.default_effort):
            return profile.default_effort
        if not levels:
            said = f"{model} takes no reasoning_effort: it is left out"
            self._warn(model, "reasoning_effort", said)
            return profile.default_effort
        if wanted in levels:
            return wanted
        lower = [one for one in levels if one.rank < wanted.rank]
        taken = max(lower, key=lambda one: one.rank) if lower else levels[0]
        said = f'{model} takes no reasoning_effort "{wanted}": "{taken}" is sent'
        self._warn(model, "reasoning_effort", said)
        return taken

    def _warn(self, model: str, name: str, said: str) -> None:
        if not self._warns or (model, name) in self._warned:
            return
        if len(self._warned) >= MAX_WARNED:
            self._warned.clear()
        self._warned.add((model, name))
        _log.warning("a setting is not sent as it is", cause=said, model=model, setting=name)


#: Providers whose requests are signed, without a key in them.
_SIGNED = ("bedrock", "vertex_ai")


def parameters_of(one: Deployment) -> dict[str, Any]:
    """Returns litellm's arguments for a deployment: its model, and how to reach it."""
    parameters: dict[str, Any] = {"model": one.target, **one.arguments()}
    if one.provider == "openai" and (project := parameters.pop("project", None)) is not None:
        parameters["extra_headers"] = {"OpenAI-Project": project}
    key = one.key()
    if one.api_base is not None:
        parameters["aws_bedrock_runtime_endpoint" if one.provider == "bedrock" else "api_base"] = (
            one.api_base
        )
        # The protocol always has a key; servers of one's own often ignore it.
        key = key or (None if one.provider in _SIGNED else "none")
    if key is not None:
        parameters["api_key"] = key
    return parameters
