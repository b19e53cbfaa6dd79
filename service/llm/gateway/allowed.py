"""Allows calls only to the models that the operator configured.

litellm finds addresses in some names (`oobabooga/http://…`), assumes local servers for some
providers, and uses any key in the environment. So a client's name of a model counts only if the
operator's configuration allows it.
"""

import re

from service.domain.prompting.faults import Fault
from service.domain.prompting.flows import ModelRequest
from service.domain.values.errors import InvalidInput
from service.domain.values.memory_specs import MemorySpec
from service.domain.values.reasons import Reason
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import Completion, Transport
from service.settings.config import Config
from service.settings.models import WILDCARD

#: What a "*" matches. Some adapters put a name into the URL of a call: nothing in it may end a host
#: or a path, or lead out of one.
_ANY = "[A-Za-z0-9_:@+=~./-]*"
_LEADS_OUT = ("//", "..")
#: How many patterns a refusal names.
_SHOWN_PATTERNS = 5
#: How many characters of a name a refusal repeats.
_SHOWN_CHARACTERS = 100


class AllowedModels:
    """Knows the models that clients may name and calls may go to."""

    def __init__(self, config: Config) -> None:
        self._named = frozenset((config.model, *(one.model for one in config.deployments)))
        self._patterns = config.models
        self._any = re.compile("|".join(map(_expression, config.models)) or r"(?!)")

    def allows(self, model: str) -> bool:
        """Returns whether a model, by provider/name, may be called."""
        if model in self._named:
            return True
        leads_out = any(part in model for part in _LEADS_OUT)
        return not leads_out and self._any.fullmatch(model) is not None

    def refusal(self, model: str) -> str | None:
        """Returns one sentence on why a model may not be called and what to set, else None."""
        if self.allows(model):
            return None
        shown = ascii(model[:_SHOWN_CHARACTERS])
        if "://" in model or not model.isprintable() or "/" not in model:
            return f"the model {shown} is not named as provider/name, without any address"
        patterns = ", ".join(self._patterns[:_SHOWN_PATTERNS])
        more = ", …" if len(self._patterns) > _SHOWN_PATTERNS else ""
        besides = f", those of its deployments, and {patterns}{more}" if patterns else ""
        return (
            f"the model {shown} is not allowed here: the operator allows the default"
            f" model{besides}; PALIMPSEST_MODELS allows more"
        )

    def check(self, model: str, field: str) -> None:
        """Raises InvalidInput for a model in `field` that clients may not name; empty is valid."""
        if model and (said := self.refusal(model)) is not None:
            metadata = {"model": model[:_SHOWN_CHARACTERS]}
            raise InvalidInput(Reason.MODEL_NOT_ALLOWED, said, metadata, field=field)

    def check_spec(self, spec: MemorySpec, field: str) -> None:
        """Raises InvalidInput for a model in a memory's spec; `field` is a prefix of its fields."""
        for name in spec.model_fields:
            self.check(getattr(spec, name), f"{field}{name}")


class AllowedTransport:
    """Makes calls to allowed models only: a stored model may no longer be allowed."""

    def __init__(self, transport: Transport, models: AllowedModels) -> None:
        self._transport = transport
        self._models = models

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        """Returns the model's reply. Raises ModelFailure, before anything is sent or imported."""
        if (said := self._models.refusal(model)) is not None:
            raise ModelFailure(said, retryable=False, fault=Fault.NOT_ALLOWED)
        return await self._transport.complete(ask, model, plan)


def _expression(pattern: str) -> str:
    first, *parts = map(re.escape, pattern.split(WILDCARD))
    if not parts:
        return first
    # Atomic, so that several wildcards do not backtrack.
    return first + "".join(f"(?>{_ANY}?{part})" for part in parts[:-1]) + _ANY + parts[-1]
