"""Chooses the form in which a call asks for its reply, and remembers what a model refuses.

A provider that refuses the schema of a reply, or a system message, is called again at once without
it. That changes neither the prompt's text nor the key of the call, and any reply is read alike.
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

#: For how long a refused form is not tried again.
REMEMBERED_SECONDS = 3600.0
#: Refusals that are remembered; the oldest is forgotten.
MAX_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class Shape:
    """The form in which a call asks for its reply."""

    form: SchemaMode
    #: Whether instructions go into a system message.
    system: bool

    @property
    def has_schema(self) -> bool:
        """Whether the schema of the reply is sent."""
        return self.form in (SchemaMode.JSON_SCHEMA, SchemaMode.STRICT, SchemaMode.TOOL)


def shape_of(ask: ModelRequest, profile: Profile, effort: Effort) -> Shape:
    """Returns the form of a call, by the profile of its model."""
    return Shape(_form(ask, profile, effort), profile.system)


def _form(ask: ModelRequest, profile: Profile, effort: Effort) -> SchemaMode:
    schema, form = ask.reply_schema, profile.structured
    if schema is None or form is SchemaMode.NONE:
        return SchemaMode.NONE
    if form is SchemaMode.JSON_OBJECT:
        return _json_object(ask)
    if form is SchemaMode.TOOL and effort is not Effort.NONE:
        # While a model thinks, litellm does not force the tool, so it replies in prose.
        return SchemaMode.NONE
    if is_closed(schema):
        return form
    if not profile.any_schema:
        return SchemaMode.NONE
    return SchemaMode.JSON_SCHEMA if form is SchemaMode.STRICT else form


def _json_object(ask: ModelRequest) -> SchemaMode:
    # Providers require the word "json" in the prompt, and allow only objects.
    is_object = ask.reply_schema is not None and ask.reply_schema.get("type") == "object"
    return SchemaMode.JSON_OBJECT if is_object and "json" in ask.text.lower() else SchemaMode.NONE


#: The keywords in every provider's subset of JSON Schema.
_COMMON = frozenset(
    {
        *("type", "properties", "required", "additionalProperties"),
        *("items", "enum", "title", "description"),
    }
)


def is_closed(schema: dict[str, Any]) -> bool:
    """Returns whether every provider can enforce a schema.

    It and all nested objects have only named, required keys; there are no unions, references or
    bounds.
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
    """Remembers what the models of one process have refused."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Since when, by deployment and by what is refused.
        self._since: dict[tuple[str, str], float] = {}
        self._counter = metrics.get_meter("palimpsest.llm").create_counter(
            Metric.LLM_FORMS_REFUSED,
            description="Forms of a request that a model refused, and was asked without",
        )

    def allowed(self, deployment: str, ask: ModelRequest, wanted: Shape, profile: Profile) -> Shape:
        """Returns `wanted` without what is known to be refused."""
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
        """Returns the form in which to try again after `sent` was refused, if there is one."""
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
            _log.warning("model refuses a form, and is called without it", model=model, form=form)
        while len(self._since) >= MAX_REMEMBERED:
            del self._since[next(iter(self._since))]
        self._since[deployment, what] = self._clock()

    def _is_refused(self, deployment: str, what: str) -> bool:
        since = self._since.get((deployment, what))
        return since is not None and self._clock() - since < REMEMBERED_SECONDS


def _kind(ask: ModelRequest, form: SchemaMode) -> str:
    if form is SchemaMode.JSON_OBJECT:
        return "json_object"
    # A client's own schema may be refused while others are accepted.
    schema = json.dumps(ask.reply_schema, sort_keys=True)
    return f"{RefusedFeature.SCHEMA.value}#{hashlib.sha256(schema.encode()).hexdigest()}"


def _lesser(ask: ModelRequest, form: SchemaMode, profile: Profile) -> SchemaMode:
    if form is SchemaMode.JSON_OBJECT or not profile.json_object:
        return SchemaMode.NONE
    return _json_object(ask)


def response_format(form: SchemaMode, schema: dict[str, Any]) -> dict[str, Any] | None:
    """Returns litellm's `response_format`, if there is one. `schema` is a copy."""
    if form is SchemaMode.NONE:
        return None
    if form is SchemaMode.JSON_OBJECT:
        return {"type": "json_object"}
    shape: dict[str, Any] = {"name": "reply", "schema": schema}
    if form is SchemaMode.STRICT:
        shape["strict"] = True
    return {"type": "json_schema", "json_schema": shape}
