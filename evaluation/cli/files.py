"""What the commands of `palimpsest eval` share: datasets, files and names."""

import hashlib
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from evaluation import datasets
from service.cli.output import CommandError

#: Characters of a document's id in the name of its session.
_SLUG_CHARACTERS = 40


def read_dataset(path: Path) -> tuple[Sequence[datasets.Document], str]:
    """Returns its documents, and the digest of the file. Raises CommandError."""
    try:
        documents = datasets.read(path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except datasets.DatasetError as error:
        raise CommandError(str(error)) from error
    return documents, digest


def session_name(run_id: str, document: datasets.Document) -> str:
    """Returns the name of a document's session: unlike any other's of any run."""
    slug = "".join(char if char.isalnum() and char.isascii() else "-" for char in document.id)
    digest = hashlib.sha256(document.id.encode()).hexdigest()[:8]
    return f"eval:{run_id}:{slug[:_SLUG_CHARACTERS]}-{digest}"


def now() -> str:
    """Returns the time, as reports have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Returns what a report was made with."""
    return {
        "palimpsest": metadata.version("palimpsest-server"),
        "litellm": metadata.version("litellm"),
        "python": platform.python_version(),
    }


def listed(said: str) -> list[str]:
    """Names with commas between them."""
    return [one.strip() for one in said.split(",") if one.strip()]


def check_service(address: str, base_url: str, embedding_model: str, data_dir: Path | None) -> None:
    """Options that are for a service of the command's own. Raises CommandError."""
    if address and base_url:
        raise CommandError("--base-url is for a service of its own; the one at --address has its")
    if address and embedding_model:
        raise CommandError(
            "--embedding-model is for a service of its own; the one at --address has its"
        )
    if address and data_dir is not None:
        raise CommandError("--data-dir is for a service of its own, not for one at --address")


def check_folders(**files: Path | None) -> None:
    """Files that are to be written, by their options: their folders are there.

    Raises CommandError.
    """
    for name, path in files.items():
        if path is not None and not path.absolute().parent.is_dir():
            raise CommandError(f"--{name}: there is no folder {path.absolute().parent}")


def check_new(**files: Path | None) -> None:
    """Files that are to be written, by their options: none is there. Raises CommandError."""
    for name, path in files.items():
        if path is not None and path.exists():
            raise CommandError(f"{path} is there already; name another file for --{name}")
