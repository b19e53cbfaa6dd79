"""`palimpsest proxy`: memory for any client of OpenAI's or Anthropic's API."""

import asyncio
from typing import Annotated, Literal

import typer

from service.cli.app import SettingsPath
from service.cli.command import DEFAULT_NAME
from service.cli.output import CommandError, say
from service.cli.run import read_config

MAX_PORT = 65535
#: Names and addresses of this machine, as requests and `--listen` have them.
LOCAL = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("proxy")(proxy)


def proxy(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where programs of this machine reach it.")
    ] = "127.0.0.1:50090",
    session: Annotated[
        str, typer.Option("--session", "-s", help="The session of requests that name none.")
    ] = DEFAULT_NAME,
    openai: Annotated[
        str, typer.Option(metavar="URL", help="OpenAI's API, or one that is compatible.")
    ] = "https://api.openai.com",
    anthropic: Annotated[str, typer.Option(metavar="URL", help="Anthropic's API.")] = (
        "https://api.anthropic.com"
    ),
    tokens: Annotated[
        int, typer.Option(min=0, max=100_000, help="Tokens that are recalled at most; 0: none.")
    ] = 1000,
    budget_usd: Annotated[
        float | None,
        typer.Option(min=0.0, help="What calls may cost; what may cost more is refused."),
    ] = None,
    per: Annotated[
        Literal["hour", "day", "month"], typer.Option(help="The time, in UTC, of the budget.")
    ] = "day",
    settings_path: SettingsPath = None,
) -> None:
    """Add memory to a program by changing its base URL.

    Recalls what fits before each call of a model, puts it behind the newest message of the user,
    and remembers what both say after it. Set the program's base URL to
    http://127.0.0.1:50090/s/SESSION/v1 for OpenAI's clients, and without /v1 for Anthropic's. The
    program's own key goes on to the provider. docs/guides/proxy.md
    """
    host, separator, port = listen.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > MAX_PORT:
        raise CommandError(f"--listen must be HOST:PORT, not {listen!r}")
    if host not in LOCAL:
        raise CommandError(
            f"--listen {host}: the proxy asks for no key, and all who reach it can read the memory;"
            " listen at 127.0.0.1, and put a server with authentication before it"
        )
    # Which loads the client, and the list of prices.
    from service.proxy.serving import serve

    upstreams = {"openai": openai, "anthropic": anthropic}
    for name, url in upstreams.items():
        if not url.startswith(("http://", "https://")):
            raise CommandError(f"--{name} must be http://HOST or https://HOST, not {url!r}")
    budget = None if budget_usd is None else (budget_usd, per)
    serving = serve(
        read_config(),
        listen,
        session=session,
        upstreams=upstreams,
        tokens=tokens,
        hosts=LOCAL,
        budget=budget,
        said=say,
    )
    try:
        asyncio.run(serving)
    except (OSError, ValueError) as error:
        raise CommandError(f"{error}") from error
