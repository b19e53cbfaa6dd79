"""The requests that Claude's models accept, at Anthropic and at Bedrock."""

import re
from dataclasses import dataclass

from tests.providers.exchange import Invalid, Json

MAX_MARKS = 4
MIN_BUDGET = 1_024
_NEW = re.compile(r"claude-(opus|sonnet|haiku|fable|mythos)-(\d{1,2})(?:-(\d{1,2})(?!\d))?")
_OLD = re.compile(r"claude-(\d)(?:-(\d))?-(opus|sonnet|haiku)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Claude:
    """A model by its name."""

    name: str
    family: str
    version: tuple[int, int]

    @property
    def keeps_to_schemas(self) -> bool:
        return self.version >= (4, 5)

    @property
    def takes_sampling(self) -> bool:
        return self.version < (4, 7)

    @property
    def takes_budgets(self) -> bool:
        """Whether it thinks by a number of tokens."""
        return (3, 7) <= self.version < (4, 7)

    @property
    def takes_effort(self) -> bool:
        """Whether it thinks as it sees fit."""
        return self.version >= (4, 6)

    @property
    def always_thinks(self) -> bool:
        return self.family in ("fable", "mythos") or (
            self.family == "opus" and self.version >= (5, 5)
        )

    @property
    def takes_forced_tools(self) -> bool:
        if self.family in ("fable", "mythos"):
            return self.version < (5, 1)
        return self.family == "haiku" or self.version < (5, 5)

    @property
    def takes_prefill(self) -> bool:
        """Whether the last message may be the beginning of its reply."""
        return self.version < (4, 6)


def claude_of(model: str) -> Claude | None:
    """Returns the model of a name, wherever it is served; None: it is no Claude."""
    if found := _NEW.search(model):
        family, major, minor = found[1], found[2], found[3]
    elif found := _OLD.search(model):
        family, major, minor = found[3], found[1], found[2]
    else:
        return None
    return Claude(name=model, family=family, version=(int(major), int(minor or 0)))


def check_thinking(claude: Claude, fields: Json, max_tokens: int, *, is_forced: bool) -> None:
    """Refuses thinking that the model cannot do; `is_forced`: a tool has to be called."""
    thinking = fields.get("thinking") or {}
    kind = thinking.get("type", "")
    if kind == "enabled":
        if not claude.takes_budgets:
            said = (
                '"thinking.type.enabled" is not supported for this model. Use'
                ' "thinking.type.adaptive" and "output_config.effort" to control thinking.'
            )
            raise Invalid("thinking", said)
        budget = int(thinking.get("budget_tokens", 0))
        if budget < MIN_BUDGET:
            said = f"Input should be greater than or equal to {MIN_BUDGET}"
            raise Invalid("budget", f"thinking.enabled.budget_tokens: {said}")
        if max_tokens <= budget:
            raise Invalid("budget", "`max_tokens` must be greater than `thinking.budget_tokens`.")
    elif kind == "adaptive" and not claude.takes_effort:
        raise Invalid("thinking", "adaptive thinking is not supported on this model")
    elif kind == "disabled" and claude.always_thinks:
        raise Invalid("thinking", '"thinking.type.disabled" is not supported for this model.')
    effort = (fields.get("output_config") or {}).get("effort")
    if effort is not None:
        has_effort = claude.takes_effort or (claude.family, claude.version) == ("opus", (4, 5))
        if not has_effort:
            raise Invalid("effort", "This model does not support the effort parameter.")
        if effort not in ("low", "medium", "high", "xhigh", "max"):
            said = "Input should be 'low', 'medium', 'high', 'xhigh' or 'max'"
            raise Invalid("effort", f"output_config.effort: {said}")
    if is_forced and not claude.takes_forced_tools:
        said = 'tool_choice: type "tool" and "any" are not supported for this model.'
        raise Invalid("forced tool", said)
    if is_forced and kind in ("enabled", "adaptive"):
        raise Invalid(
            "forced tool", "Thinking may not be enabled when tool_choice forces tool use."
        )


def check_sampling(claude: Claude, fields: Json) -> None:
    """Refuses temperature, top_p and top_k where the model does not take them."""
    given = [name for name in ("temperature", "top_p", "top_k") if fields.get(name) is not None]
    if given and not claude.takes_sampling:
        raise Invalid("sampling", f"`{given[0]}` is deprecated for this model.")
    kind = (fields.get("thinking") or {}).get("type")
    if kind in ("enabled", "adaptive") and fields.get("temperature", 1) != 1:
        said = "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode."
        raise Invalid("sampling", said)
    if {"temperature", "top_p"} <= set(given) and claude.version >= (4, 5):
        said = "`temperature` and `top_p` cannot both be specified for this model."
        raise Invalid("sampling", f"{said} Please use only one.")
