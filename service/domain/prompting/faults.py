"""What a failed model call says of whom: the deployment, the request, or the text in it.

The table follows what providers answer (docs/guides/models.md#when-a-model-fails).
"""

from enum import StrEnum


class Fault(StrEnum):
    """Why a call has no reply. Stored, and shown to operators."""

    #: No connection, or none of its answers came in time.
    UNREACHABLE = "unreachable"
    #: It answered with an error of its own: 5xx, overloaded.
    FAILING = "failing"
    #: Too many requests or tokens for now.
    RATE_LIMITED = "rate limited"
    #: The process that makes the calls ended; it is started again.
    EXECUTOR_GONE = "executor gone"
    #: The key is missing, wrong or without the right (401, 403).
    KEY_REFUSED = "key refused"
    #: There is no such model or endpoint (404), or no provider of that name.
    MODEL_UNKNOWN = "model unknown"
    #: Quota or credit is used up; waiting alone does not help.
    QUOTA_EXHAUSTED = "quota exhausted"
    #: A Python package that the provider needs is not installed.
    PACKAGE_MISSING = "package missing"
    #: The operator does not allow the model (PALIMPSEST_MODELS).
    NOT_ALLOWED = "not allowed"
    #: A 400 that says nothing of the text: the configuration's fault if several memories get it.
    REQUEST_REFUSED = "request refused"
    #: A response without a reply; the deployment's fault if several memories get it.
    NO_REPLY = "no reply"
    #: The provider refuses this text (content filter, policy).
    CONTENT_REFUSED = "content refused"
    #: Prompt and reply do not fit the model.
    TOO_LONG = "too long"
    #: Its only client does not want the reply any more.
    CALLED_OFF = "called off"

    @property
    def passes(self) -> bool:
        """Whether it passes by itself: retried without end, and no try is counted."""
        return self in _PASSING

    @property
    def is_configuration(self) -> bool:
        """Whether an operator has to change something; until then every call fails."""
        return self in _CONFIGURATION

    @property
    def is_deployment(self) -> bool:
        """Whether it says nothing of the one step that met it."""
        return self.passes or self.is_configuration

    @property
    def is_ambiguous(self) -> bool:
        """Whether several memories have to meet it before it is the deployment's."""
        return self in _AMBIGUOUS


def fault_of(value: str) -> Fault:
    """Returns a fault by its value; one that another release knows counts as one that passes."""
    try:
        return Fault(value)
    except ValueError:
        return Fault.FAILING


_PASSING = frozenset({Fault.UNREACHABLE, Fault.FAILING, Fault.RATE_LIMITED, Fault.EXECUTOR_GONE})
_CONFIGURATION = frozenset(
    {
        Fault.KEY_REFUSED,
        Fault.MODEL_UNKNOWN,
        Fault.QUOTA_EXHAUSTED,
        Fault.PACKAGE_MISSING,
        Fault.NOT_ALLOWED,
    }
)
_AMBIGUOUS = frozenset({Fault.REQUEST_REFUSED, Fault.NO_REPLY})

#: What the model did, as a sentence goes on after its name.
PHRASES = {
    Fault.UNREACHABLE: "could not be reached",
    Fault.FAILING: "failed",
    Fault.RATE_LIMITED: "is rate limited",
    Fault.EXECUTOR_GONE: "was not asked: the process that makes the calls is gone",
    Fault.KEY_REFUSED: "refused the key",
    Fault.MODEL_UNKNOWN: "is not known",
    Fault.QUOTA_EXHAUSTED: "has no quota or credit left",
    Fault.PACKAGE_MISSING: "needs a package that is not installed",
    Fault.NOT_ALLOWED: "is not allowed here",
    Fault.REQUEST_REFUSED: "refused the request",
    Fault.NO_REPLY: "gave a response that holds no reply",
    Fault.CONTENT_REFUSED: "refused the text",
    Fault.TOO_LONG: "does not take so long a text",
    Fault.CALLED_OFF: "was not asked: its reply is no longer needed",
}

#: What an operator does about it; empty: nothing, it passes.
ADVICE = {
    Fault.UNREACHABLE: "check PALIMPSEST_MODEL_BASE_URL, or the deployment's api_base, and the"
    " network if it does not pass",
    Fault.FAILING: "it is tried again until it passes",
    Fault.RATE_LIMITED: "it is tried again until it passes; if it lasts, raise the limits",
    Fault.EXECUTOR_GONE: "it is started again by its worker",
    Fault.KEY_REFUSED: "check PALIMPSEST_MODEL_API_KEY, the deployment's key, or the provider's own"
    " variable",
    Fault.MODEL_UNKNOWN: "check PALIMPSEST_MODEL, its base URL, and the model of the memory",
    Fault.QUOTA_EXHAUSTED: "add credit or raise the quota at the provider",
    Fault.PACKAGE_MISSING: "install the package that is named",
    Fault.NOT_ALLOWED: "add it to PALIMPSEST_MODELS, or give the memory another model",
    Fault.REQUEST_REFUSED: "check PALIMPSEST_MODEL_SETTINGS, and what the model takes, with"
    " `palimpsest model check`",
    Fault.NO_REPLY: "check what the endpoint answers",
    Fault.CONTENT_REFUSED: "skip the text (on_failure), or use another model",
    Fault.TOO_LONG: "use a model with a larger window, or smaller chunks",
    Fault.CALLED_OFF: "",
}
