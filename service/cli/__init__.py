"""`palimpsest`: the command line.

Everything that goes wrong ends in one clear line on standard error and a non-zero
exit code, never in a traceback: 1 for a refusal, 2 for wrong usage, 130 for Ctrl-C.
"""

import os
import sys
from collections.abc import Callable

#: Commands that run the service. They load neither the other commands nor the client: the first
#: step after a start waits for all that its process loads.
SERVICE = frozenset({"up", "serve", "work", "executor", "migrate", "restore"})


def main() -> None:
    """Runs the command that was asked for."""
    # gRPC itself writes a line for each peer that fails to connect by TLS: no JSON, in a log of it.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    if sys.argv[1:2] == ["hook"]:
        # An agent waits for it at each prompt.
        from palimpsest_hook.command import main as hook

        hook(sys.argv[2:])
        return
    if SERVICE.intersection(sys.argv[1:2]):
        from service.cli.run import main as run
    else:
        # A program waits for its tools when it starts, some of them for five seconds at most.
        run = _client_commands(tools_alone=sys.argv[1:2] == ["mcp"])
    run()


def _client_commands(*, tools_alone: bool) -> Callable[[], None]:
    try:
        if tools_alone:
            from service.cli.mcp import main
        else:
            from service.cli.commands import main
    except (ImportError, AttributeError) as error:
        from service.cli.output import fail
        from service.usecases.operations.strangers import ADVICE, strangers

        other = strangers()
        if not other:
            raise
        fail(f"{other} ({error}); {ADVICE}")
    return main
