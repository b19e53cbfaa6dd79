"""What a hook is set to: by variables of the environment, and by the folder the agent works in."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

#: Where the HTTP API is; the default is that of `palimpsest up`.
HTTP_URL_VARIABLE = "PALIMPSEST_HTTP_URL"
#: The session of all that is captured; by default one for each repository.
SESSION_VARIABLE = "PALIMPSEST_SESSION"
#: The folder of the queue.
QUEUE_VARIABLE = "PALIMPSEST_HOOK_QUEUE"
#: Tokens of what is recalled at a prompt; 0 recalls nothing.
TOKENS_VARIABLE = "PALIMPSEST_HOOK_TOKENS"
#: Seconds that a prompt waits at most for what is recalled, after the process has started.
SECONDS_VARIABLE = "PALIMPSEST_HOOK_SECONDS"
#: `off` captures and recalls nothing.
SWITCH_VARIABLE = "PALIMPSEST_HOOK"

DEFAULT_HTTP_URL = "http://127.0.0.1:50080"
DEFAULT_TOKENS = 1000
DEFAULT_SECONDS = 0.18
MAX_SECONDS = 60.0
MAX_TOKENS = 100_000
#: Bytes of a session's id.
MAX_ID_BYTES = 256
#: Bytes that are read of a repository's configuration.
MAX_CONFIG_BYTES = 256 * 1024


class Settings(NamedTuple):
    """How one hook runs. Named tuples here, since `dataclasses` loads more than all else."""

    http_url: str
    #: The queue of the service that is named by the addresses.
    queue: Path
    tokens: int
    seconds: float
    enabled: bool

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Settings":
        """Reads the variables. Raises ValueError, which names the variable."""
        url = environment.get(HTTP_URL_VARIABLE) or DEFAULT_HTTP_URL
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError(f"{HTTP_URL_VARIABLE} must be http://HOST:PORT or https://HOST:PORT")
        # What waits for one service must not reach another.
        target = f"{environment.get('PALIMPSEST_ADDRESS', '')}\n{url}"
        name = hashlib.sha256(target.encode()).hexdigest()[:16]
        return cls(
            http_url=url.rstrip("/"),
            queue=_queue_folder(environment) / name,
            tokens=_tokens(environment.get(TOKENS_VARIABLE, "")),
            seconds=_seconds(environment.get(SECONDS_VARIABLE, "")),
            enabled=environment.get(SWITCH_VARIABLE, "").lower() not in ("off", "0", "false", "no"),
        )


def _queue_folder(environment: Mapping[str, str]) -> Path:
    if given := environment.get(QUEUE_VARIABLE):
        return Path(given).expanduser()
    state = environment.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local/state") / "palimpsest/hook"


def _tokens(text: str) -> int:
    if not text:
        return DEFAULT_TOKENS
    if not text.isdecimal() or int(text) > MAX_TOKENS:
        raise ValueError(f"{TOKENS_VARIABLE} must be a number from 0 to {MAX_TOKENS}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text or DEFAULT_SECONDS)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError(f"{SECONDS_VARIABLE} must be a number above 0, up to {MAX_SECONDS:g}")
    return seconds


def session_of(folder: Path, environment: Mapping[str, str]) -> str:
    """Returns the id of the session for what is said in a folder.

    It is that of the environment, else `code:OWNER.NAME` after the repository's remote `origin`,
    which is the same on all machines, else `code:FOLDER-DIGEST` after the repository's folder.
    """
    if given := environment.get(SESSION_VARIABLE):
        return given
    top = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)
    name = _remote_name(top / ".git/config")
    if not name:
        digest = hashlib.sha256(os.fsencode(top)).hexdigest()[:8]
        name = f"{top.name or 'root'}-{digest}"
    printable = "".join(letter if letter.isprintable() else "_" for letter in name)
    whole = f"code:{printable}".encode(errors="replace")
    return whole[:MAX_ID_BYTES].decode(errors="ignore").strip()


def _remote_name(config: Path) -> str:
    """Returns `OWNER.NAME` of the remote `origin`; nothing if there is none."""
    try:
        with config.open(encoding="utf-8", errors="replace") as file:
            lines = file.read(MAX_CONFIG_BYTES).splitlines()
    except OSError:
        return ""
    url = section = ""
    for line in map(str.strip, lines):
        name, _, value = line.partition("=")
        if line.startswith("["):
            section = line
        elif section == '[remote "origin"]' and name.strip().lower() == "url":
            url = value.strip()
    parts = [part for part in url.replace(":", "/").split("/") if part]
    return ".".join(parts[-2:]).removesuffix(".git")
