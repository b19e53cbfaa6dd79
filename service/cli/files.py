"""Files that commands read: texts, schemas, and steps of an agent."""

import sys
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from palimpsest import MAX_JSON_BYTES, MAX_SOURCE_BYTES, JsonText, Producer
from service.cli.output import CommandError


def read_text(name: str, most: int | None = None) -> str:
    """Returns a file's text, or standard input's for "-", if it has no more bytes than `most`.

    Raises CommandError.
    """
    shown = "standard input" if name == "-" else name
    size = -1 if most is None else most + 1
    try:
        if name == "-":
            raw = sys.stdin.buffer.read(size)
        else:
            with Path(name).open("rb") as file:
                raw = file.read(size)
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error.strerror}") from error
    if most is not None and len(raw) > most:
        raise CommandError(f"{shown} has more than {most} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CommandError(
            f"{shown} is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}"
        ) from error
    if "\0" in text:
        raise CommandError(f"{shown} holds a NUL character at {text.index(chr(0))}; is it text?")
    if not text.strip():
        raise CommandError(f"{shown} has no text")
    return text


def read_schema(name: str) -> str:
    """Returns the schema in a file, as the client takes it. Raises CommandError.

    What begins with { is JSON Schema: class source never does, and has to be shorter.
    """
    text = read_text(name, MAX_JSON_BYTES)
    if text.lstrip().startswith("{"):
        return JsonText(text)
    if len(text.encode()) > MAX_SOURCE_BYTES:
        shown = "standard input" if name == "-" else name
        raise CommandError(f"{shown} has more than {MAX_SOURCE_BYTES} bytes of class source")
    return text


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("text", "holds a NUL character")
    return text


_Text = Annotated[str, AfterValidator(_without_nul)]


class Step(BaseModel):
    """A step, or a message where it has a role."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    observation: _Text = ""
    thought: _Text = ""
    action: _Text = ""
    observed_first: bool = False
    #: For a message only.
    role: _Text = ""
    text: _Text = ""
    metadata: dict[_Text, _Text] = Field(default_factory=dict)

    def is_empty(self) -> bool:
        """Returns whether it has no text."""
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
    """Returns the steps in a file, or in standard input for "-". Raises CommandError."""
    text = read_text(name)
    shown = "standard input" if name == "-" else name
    # Not splitlines, which cuts at more than line feeds; a text in JSON may hold those.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [_step(line, f"{shown}, line {number}") for number, line in lines]


def _step(line: str, where: str) -> Step:
    # Refuses here what the service would refuse after it had stored earlier lines.
    try:
        step = Step.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        at = "".join(f": {name}" for name in first["loc"] if name != "[key]")
        said = first["msg"]
        if first["type"] == "extra_forbidden":
            said = f"a step has no such field; it has {', '.join(Step.model_fields)}"
        elif first["type"] == "json_invalid":
            said = f"is no JSON that UTF-8 can hold: {said}"
        raise CommandError(f"{where}{at}: {said}") from error
    if step.is_empty():
        raise CommandError(f"{where} has no observation, thought, action or text")
    if (step.role or step.text) and (
        step.observation or step.thought or step.action or step.observed_first
    ):
        raise CommandError(f"{where} is a step and a message in one")
    if step.role and not step.text:
        raise CommandError(f"{where} has a role and no text")
    return step
