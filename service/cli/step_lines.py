"""Steps of an agent as lines of JSON."""

import json
from dataclasses import dataclass, field
from typing import Any

from palimpsest import Producer
from service.cli.output import CommandError
from service.cli.texts import read_text

_TEXTS = ("observation", "thought", "action", "role", "text")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A step, or a message where it has a role."""

    observation: str = ""
    thought: str = ""
    action: str = ""
    observed_first: bool = False
    #: Of a message.
    role: str = ""
    text: str = ""
    metadata: dict[str, str] = field(default_factory=dict)

    def is_empty(self) -> bool:
        """Whether there is nothing to read in it."""
        return not (self.observation or self.thought or self.action or self.text)

    async def send(self, producer: Producer) -> None:
        """Appends it."""
        if self.role:
            await producer.append_message(self.role, self.text, metadata=self.metadata)
        elif self.text:
            await producer.append(self.text, metadata=self.metadata)
        else:
            await producer.append_step(
                observation=self.observation,
                thought=self.thought,
                action=self.action,
                observed_first=self.observed_first,
                metadata=self.metadata,
            )


def read_steps(name: str) -> list[Step]:
    """The steps of a file, or of standard input for "-". Raises CommandError naming the line."""
    text = read_text(name)
    shown = "standard input" if name == "-" else name
    # Not splitlines, which cuts at more than line feeds; a text in JSON may hold those.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [_step(line, f"{shown}, line {number}") for number, line in lines]


def _step(line: str, where: str) -> Step:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{where} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise CommandError(f"{where} is no JSON object")
    step = Step(**_checked(value, where))
    if step.is_empty():
        raise CommandError(f"{where} has no observation, thought, action or text")
    if (step.role or step.text) and (
        step.observation or step.thought or step.action or step.observed_first
    ):
        raise CommandError(f"{where} is a step and a message in one")
    if step.role and not step.text:
        raise CommandError(f"{where} has a role and no text")
    return step


def _checked(value: dict[str, Any], where: str) -> dict[str, Any]:
    for name, held in value.items():
        if name == "metadata":
            if not isinstance(held, dict) or not all(isinstance(v, str) for v in held.values()):
                raise CommandError(f"{where}: metadata is no object of texts")
            texts = [*held, *held.values()]
        elif name == "observed_first":
            if not isinstance(held, bool):
                raise CommandError(f"{where}: observed_first is neither true nor false")
            texts = []
        elif name not in _TEXTS:
            raise CommandError(f"{where}: a step has no {name!r}")
        elif not isinstance(held, str):
            raise CommandError(f"{where}: {name} is no text")
        else:
            texts = [held]
        for text in texts:
            _refuse_unfit(text, f"{where}: {name}")
    return value


def _refuse_unfit(text: str, what: str) -> None:
    """Refuses what the service would only refuse behind the lines before."""
    if "\0" in text:
        raise CommandError(f"{what} holds a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CommandError(f"{what} holds half of a surrogate pair") from error
