"""`palimpsest hook`: what coding agents run at their events (`palimpsest-hook`)."""

import typer


def register(app: typer.Typer) -> None:
    """Adds the command, for the list of commands; `service.cli` runs it without loading them."""
    app.command(
        "hook",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(_hook)


def _hook(context: typer.Context) -> None:
    """Capture the turns of a coding agent, and recall at its prompts."""
    from palimpsest_hook.command import main

    main(context.args)
