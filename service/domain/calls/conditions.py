"""Conditions that block every call to a model, shared by all processes of a deployment."""

from dataclasses import dataclass
from datetime import datetime

from service.domain.prompting.faults import Fault


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """Why a deployment that serves a model is not asked for now."""

    #: A deployment's name, or the model where it has none.
    deployment: str
    model: str
    fault: Fault
    #: One sentence: the provider's own words, and what to do.
    cause: str
    #: Calls that found it so, one after the other.
    failures: int
    since: datetime
    #: Seconds until one call may find out whether it has passed; negative when it is due.
    probe_seconds: float
