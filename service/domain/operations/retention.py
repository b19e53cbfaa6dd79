"""Retention: for how long the data of a session is kept."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

#: The longest time that can be given, in days.
MAX_DAYS = 36_500


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """How many days each kind of data is kept, 1 to MAX_DAYS; 0: for ever.

    None: of a session as its tenant says, of a tenant for ever.
    """

    #: The session itself, from the newest append, question or change of a memory on.
    idle_session_days: int | None = None
    #: The session itself, from its creation on.
    session_days: int | None = None
    #: Content of chunks that all memories have read; positions stay.
    chunk_days: int | None = None
    #: Texts of model calls: replies, failures and refusals.
    call_days: int | None = None
    #: Answers with all that belongs to them.
    answer_days: int | None = None
    #: Trajectories of answers.
    trajectory_days: int | None = None
    #: All revisions of PRISM memories; of older ones the last of each day is kept.
    history_days: int | None = None

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "Retention":
        """Returns what `stored` gave; ignores fields of a later release."""
        return cls(**{name: stored[name] for name in NAMES if name in stored})

    def stored(self) -> dict[str, int]:
        """Returns the fields that are given, as they are stored."""
        return {name: days for name, days in asdict(self).items() if days is not None}

    def as_json(self) -> str:
        """Returns the same as JSON."""
        return json.dumps(self.stored())

    def over(self, tenant: "Retention") -> dict[str, int]:
        """Returns what applies to a session of that tenant: only fields with an end."""
        found = {**tenant.stored(), **self.stored()}
        return {name: days for name, days in found.items() if days}


#: The fields of a policy.
NAMES = tuple(one.name for one in fields(Retention))
#: Says nothing.
NO_POLICY = Retention()
