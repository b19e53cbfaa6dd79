"""Commands that other distributions add: installed and missing."""

import pytest
import typer
from typer.testing import CliRunner

from service.cli import extensions
from service.cli.app import new_app
from service.cli.output import CommandError


def _app() -> typer.Typer:
    app = new_app()

    @app.callback()
    def options() -> None: ...

    extensions.register(app)
    return app


def test_the_evaluation_is_a_command_where_it_is_installed() -> None:
    done = CliRunner().invoke(_app(), ["eval", "--help"])
    assert done.exit_code == 0
    assert "--dataset" in done.output


def test_a_missing_evaluation_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "GROUP", "palimpsest.nothing")
    done = CliRunner().invoke(_app(), ["eval", "questions", "--dataset", "x"])
    assert isinstance(done.exception, CommandError)
    assert str(done.exception) == (
        "`palimpsest eval` is not installed: pip install 'palimpsest-server[eval]'"
    )
    assert "eval" not in CliRunner().invoke(_app(), ["--help"]).output
