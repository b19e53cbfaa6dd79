"""Chooses the form in which a call asks for its reply, and notes what a model refuses.

A provider that refuses the schema of a reply, or a system message, is asked again at once
without it. That changes neither the prompt's text nor the key of the call: whatever replies,
the reply is read in the same way.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import structlog
from opentelemetry import metrics

from service.domain.prompting.flows import ModelRequest
from service.llm.providers.failures import RefusedFeature
from service.llm.providers.labels import LABELS
from service.llm.providers.profiles import Profile
from service.settings.profiles import Effort, SchemaMode
from service.telemetry.names import Attribute, Metric

_log = structlog.get_logger("palimpsest.llm")

#: For so long a model is not asked in a form that it refused; then once more.
REMEMBERED_SECONDS = 3600.0
#: Models whose refusals are remembered; the oldest is forgotten.
MAX_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class Shape:
    """How a call is asked for its reply."""

    form: SchemaMode
    #: Whether instructions go into a system message.
    system: bool

    @property
    def has_schema(self) -> bool:
        """Whether the schema of the reply is sent along."""
        return self.form in (SchemaMode.JSON_SCHEMA, SchemaMode.STRICT, SchemaMode.TOOL)


def shape_of(ask: ModelRequest, profile: Profile, effort: Effort) -> Shape:
    """How a call is asked, by the profile of its model."""
    return Shape(_form(ask, profile, effort), profile.system)


def _form(ask: ModelRequest, profile: Profile, effort: Effort) -> SchemaMode:
    schema, form = ask.reply_schema, profile.structured
    if schema is None or form is SchemaMode.NONE:
        return SchemaMode.NONE
    if form is SchemaMode.JSON_OBJECT:
        return _json_object(ask)
    if form is SchemaMode.TOOL and effort is not Effort.NONE:
        # While a model thinks litellm does not force the tool, and prose comes.
        return SchemaMode.NONE
    if is_closed(schema):
        return form
    if not profile.any_schema:
        return SchemaMode.NONE
    return SchemaMode.JSON_SCHEMA if form is SchemaMode.STRICT else form


def _json_object(ask: ModelRequest) -> SchemaMode:
    # Providers refuse it where the prompt does not say "json"; and only objects come.
    is_object = ask.reply_schema is not None and ask.reply_schema.get("type") == "object"
    return SchemaMode.JSON_OBJECT if is_object and "json" in ask.text.lower() else SchemaMode.NONE


#: What every provider's subset of JSON Schema has.
_COMMON = frozenset(
    {
        *("type", "properties", "required", "additionalProperties"),
        *("items", "enum", "title", "description"),
    }
)


def is_closed(schema: dict[str, Any]) -> bool:
    """Whether a schema is of the kind that every provider can hold a model to.

    An object with all its keys named and required, all the way down; no unions, references
    or bounds.
    """
    return schema.get("type") == "object" and _is_common(schema)


def _is_common(schema: Any) -> bool:
    if not isinstance(schema, dict) or not set(schema) <= _COMMON:
        return False
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            return (
                schema.get("additionalProperties") is False
                and set(schema.get("required", ())) == set(properties)
                and all(map(_is_common, properties.values()))
            )
        case "array":
            return _is_common(schema.get("items"))
        case "string" | "integer" | "number" | "boolean":
            return True
    return False


class Refusals:
    """What the models of one process turned out not to take."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Since when, by deployment and by what is refused.
        self._since: dict[tuple[str, str], float] = {}
        self._counter = metrics.get_meter("palimpsest.llm").create_counter(
            Metric.LLM_FORMS_REFUSED,
            description="Forms of a request that a model refused, and was asked without",
        )

    def allowed(self, deployment: str, ask: ModelRequest, wanted: Shape, profile: Profile) -> Shape:
        """`wanted` without what is known to be refused."""
        shape = wanted
        if shape.system and self._is_refused(deployment, RefusedFeature.SYSTEM.value):
            shape = replace(shape, system=False)
        while shape.form is not SchemaMode.NONE and self._is_refused(
            deployment, _kind(ask, shape.form)
        ):
            shape = replace(shape, form=_lesser(ask, shape.form, profile))
        return shape

    def without(
        self,
        deployment: str,
        model: str,
        ask: ModelRequest,
        sent: Shape,
        refused: RefusedFeature,
        profile: Profile,
    ) -> Shape | None:
        """How to ask again after `sent` was refused; None where that says nothing of it."""
        if refused is RefusedFeature.SYSTEM:
            if not sent.system:
                return None
            self._note(deployment, model, RefusedFeature.SYSTEM.value)
            return replace(sent, system=False)
        if sent.form is SchemaMode.NONE:
            return None
        if refused is RefusedFeature.SCHEMA:
            self._note(deployment, model, _kind(ask, sent.form))
        return self.allowed(
            deployment, ask, replace(sent, form=_lesser(ask, sent.form, profile)), profile
        )

    def _note(self, deployment: str, model: str, what: str) -> None:
        form = what.partition("#")[0]
        self._counter.add(1, {Attribute.MODEL: LABELS.of(model), Attribute.FORM: form})
        if not self._is_refused(deployment, what):
            _log.warning("model refuses a form and is asked without it", model=model, form=form)
        while len(self._since) >= MAX_REMEMBERED:
            del self._since[next(iter(self._since))]
        self._since[deployment, what] = self._clock()

    def _is_refused(self, deployment: str, what: str) -> bool:
        since = self._since.get((deployment, what))
        return since is not None and self._clock() - since < REMEMBERED_SECONDS


def _kind(ask: ModelRequest, form: SchemaMode) -> str:
    if form is SchemaMode.JSON_OBJECT:
        return "json_object"
    # That of a client may be refused where all others are taken.
    schema = json.dumps(ask.reply_schema, sort_keys=True)
    return f"{RefusedFeature.SCHEMA.value}#{hashlib.sha256(schema.encode()).hexdigest()}"


def _lesser(ask: ModelRequest, form: SchemaMode, profile: Profile) -> SchemaMode:
    if form is SchemaMode.JSON_OBJECT or not profile.json_object:
        return SchemaMode.NONE
    return _json_object(ask)


def response_format(form: SchemaMode, schema: dict[str, Any]) -> dict[str, Any] | None:
    """litellm's `response_format`; None where there is none. `schema` is a copy."""
    if form is SchemaMode.NONE:
        return None
    if form is SchemaMode.JSON_OBJECT:
        return {"type": "json_object"}
    shape: dict[str, Any] = {"name": "reply", "schema": schema}
    if form is SchemaMode.STRICT:
        shape["strict"] = True
    return {"type": "json_schema", "json_schema": shape}
