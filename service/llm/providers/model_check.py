"""Checks a model's profile by one tiny request of each form.

Profiles are from documents; only the provider knows what a model accepts.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from service.domain.prism.replies import REPLY_SCHEMA
from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.domain.prompting.tokens import estimate_prompt_tokens
from service.domain.spend.prices import most_micro_usd
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.prices import Prices
from service.llm.providers.profiles import Profile, Profiles
from service.llm.providers.transport import Completion, LitellmTransport
from service.settings.config import Config
from service.settings.models import ModelSetting, matching
from service.settings.profiles import Effort, ProfileOverride, Sampling, SchemaMode

#: Tokens of a reply, without thinking.
REPLY_TOKENS = 128

_TASK = 'Write JSON of the form {"changes":[{"op":"add","path":"a.b","value":"text"}]}.\n'
_TEXT = "Add the colour blue at the path colours.sky. Write the JSON and nothing else.\n"


class CheckResult(StrEnum):
    """The outcome of a request."""

    WORKS = "works"
    #: It was answered, but not as requested.
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """One request that tests a feature."""

    name: str
    #: What the profile says about it, in a word or two.
    profile: str
    #: Whether the service uses it, so that it has to work.
    needed: bool
    #: The profile and the settings of the model for this request.
    override: dict[str, Any] = field(default_factory=dict)
    setting: dict[str, Any] = field(default_factory=dict)
    streams: bool = False
    wants_json: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """A request and its outcome."""

    probe: Probe
    outcome: CheckResult
    #: The provider's words, or a remark.
    said: str = ""
    completion: Completion | None = None

    @property
    def is_ok(self) -> bool:
        """Whether the service can use the model by this profile."""
        return self.outcome is CheckResult.WORKS or not self.probe.needed


def probes_of(profile: Profile) -> list[Probe]:
    """Returns the requests that test a model, the plainest first."""
    plain = {"system": False, "structured": SchemaMode.NONE}
    held = profile.structured
    forms = {
        SchemaMode.JSON_OBJECT: held is SchemaMode.JSON_OBJECT,
        SchemaMode.JSON_SCHEMA: held in (SchemaMode.JSON_SCHEMA, SchemaMode.TOOL),
        SchemaMode.STRICT: held is SchemaMode.STRICT,
    }
    fixed = profile.sampling is Sampling.NEVER or (
        profile.sampling is Sampling.UNTHINKING and profile.default_effort is not Effort.NONE
    )
    sampled = {**plain, "sampling": Sampling.ALWAYS, "refuses": ()}
    return [
        Probe(name="plain", profile="sent", needed=True, override=plain),
        Probe(
            name="system message",
            profile="sent" if profile.system else "not sent",
            needed=profile.system,
            override={**plain, "system": True},
        ),
        *(
            Probe(
                name=form.value,
                profile="sent" if sent else "not sent",
                needed=sent,
                override={**plain, "structured": form, "any_schema": True},
                wants_json=True,
            )
            for form, sent in forms.items()
        ),
        Probe(name="streaming", profile="sent", needed=True, override=plain, streams=True),
        Probe(
            name="temperature 0",
            profile="not sent" if fixed else "sent where set",
            needed=not fixed,
            override=sampled,
            setting={"temperature": 0},
        ),
        *(
            Probe(
                name=f"effort {level.value}",
                profile="sent where set",
                needed=True,
                override=plain,
                setting={"reasoning_effort": level},
            )
            for level in profile.effort_levels
        ),
    ]


class ModelCheck:
    """Checks one model of a configuration."""

    def __init__(self, config: Config, model: str) -> None:
        self._config = config
        self._model = model
        # The deployments of a model are alike: the first is checked.
        deployments = [one for one in config.deployments if one.model == model]
        self._deployment = deployments[0].name if deployments else ""
        #: The deployments of the model, a sentence each, and which of them is checked.
        self.deployments = [
            f"{'asked at' if one is deployments[0] else 'not asked'}: {one.name}, {one.shown()}"
            for one in deployments
        ]
        self.profile = Profiles(config).of(model)
        self.probes = probes_of(self.profile)

    def most_micro_usd(self) -> int | None:
        """Returns the most that all requests cost, in millionths of a dollar, if known."""
        prices = Prices(self._config).of(self._model)
        tokens = estimate_prompt_tokens(_TASK) + estimate_prompt_tokens(_TEXT)
        costs = [
            most_micro_usd(prices, input_tokens=tokens, output_tokens=self.reply_tokens(probe))
            for probe in self.probes
        ]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None

    def reply_tokens(self, probe: Probe) -> int:
        """Returns the bound of a probe's reply, thinking included."""
        return self._transport(probe).requests.reply_tokens(_ask(probe), self._model)

    async def run(self, probe: Probe) -> Checked:
        """Makes one request."""
        heard: list[str] = []
        plan = CallPlan(
            deployment=self._deployment, on_text=heard.append if probe.streams else None
        )
        try:
            done = await self._transport(probe).complete(_ask(probe), self._model, plan)
        except ModelFailure as failure:
            return Checked(probe=probe, outcome=CheckResult.REFUSED, said=str(failure))
        outcome, said = self._judged(probe, done)
        return Checked(probe=probe, outcome=outcome, said=said, completion=done)

    def _judged(self, probe: Probe, done: Completion) -> tuple[CheckResult, str]:
        if done.end is not End.COMPLETE:
            return (
                CheckResult.IGNORED,
                f"the reply ended otherwise: {done.end.value} {done.said}".strip(),
            )
        if probe.wants_json and not _fits(done.text):
            return CheckResult.IGNORED, "the reply is not of the form that was asked for"
        if probe.name == "plain" and done.reasoning_tokens:
            if self.profile.default_effort is Effort.NONE:
                return CheckResult.WORKS, (
                    f"it thinks unasked ({done.reasoning_tokens} tokens): set default_effort"
                )
            return CheckResult.WORKS, f"it thinks unasked ({done.reasoning_tokens} tokens)"
        return CheckResult.WORKS, ""

    def suggested(self, checked: list[Checked]) -> dict[str, Any]:
        """Returns what `PALIMPSEST_MODEL_PROFILES` could say of the model; empty for nothing."""
        by_name = {one.probe.name: one for one in checked}
        found = dict(_suggestions(self.profile, by_name))
        return {self._model: found} if found else {}

    def _transport(self, probe: Probe) -> LitellmTransport:
        over: ProfileOverride = matching(self._config.model_profiles, self._model) or (
            ProfileOverride()
        )
        known: ModelSetting = matching(self._config.model_settings, self._model) or ModelSetting()
        setting = ModelSetting(
            extra=known.extra, extra_body=known.extra_body, cache_ttl=known.cache_ttl
        ).model_copy(update=probe.setting)
        config = self._config.model_copy(
            update={
                "model_profiles": {self._model: over.model_copy(update=probe.override)},
                "model_settings": {self._model: setting},
            }
        )
        return LitellmTransport(config, falls_back=False)


def _ask(probe: Probe) -> ModelRequest:
    return ModelRequest(
        purpose=Purpose.ANSWER,
        template="model.check/1",
        segments=(
            Segment(kind=SegmentKind.TASK, text=_TASK),
            Segment(kind=SegmentKind.QUERY, text=_TEXT, reusable=False),
        ),
        max_output_tokens=REPLY_TOKENS,
        reply_schema=REPLY_SCHEMA if probe.wants_json else None,
    )


def _fits(text: str) -> bool:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return False
    changes = said.get("changes") if isinstance(said, dict) else None
    return (
        isinstance(changes, list)
        and bool(changes)
        and all(isinstance(one, dict) and set(one) == {"op", "path", "value"} for one in changes)
    )


def _suggestions(profile: Profile, by_name: dict[str, Checked]) -> Iterator[tuple[str, Any]]:
    def works(name: str) -> bool:
        return name in by_name and by_name[name].outcome is CheckResult.WORKS

    if not works("plain"):
        return
    plain = by_name["plain"].completion
    if plain is not None and plain.reasoning_tokens and profile.default_effort is Effort.NONE:
        yield "default_effort", Effort.MEDIUM.value
    if profile.system and not works("system message"):
        yield "system", False
    best = next(
        (
            one
            for one in (SchemaMode.STRICT, SchemaMode.JSON_SCHEMA, SchemaMode.JSON_OBJECT)
            if works(one.value)
        ),
        SchemaMode.NONE,
    )
    held = SchemaMode.JSON_SCHEMA if profile.structured is SchemaMode.TOOL else profile.structured
    if held is not best and not (held is not SchemaMode.NONE and works(held.value)):
        yield "structured", best.value
    if profile.sampling is not Sampling.NEVER and not works("temperature 0"):
        yield "sampling", Sampling.NEVER.value
    refused = [one for one in profile.effort_levels if not works(f"effort {one.value}")]
    if refused:
        yield "effort_levels", [one.value for one in profile.effort_levels if one not in refused]
