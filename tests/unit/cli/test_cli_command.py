"""Commands as functions: their options, what these name, and what is wrong usage."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from palimpsest import Client, Memory, Session, Tree
from service.cli.command import Freshness, Json, NamedMemory, NamedSession, command, given
from service.cli.commands import app
from service.cli.output import CommandError


@dataclass(frozen=True, slots=True)
class Options:
    least: Annotated[int | None, typer.Option(min=1)] = None
    texts: Annotated[list[str] | None, typer.Option("--text")] = None


def called(work: Any, *arguments: str) -> list[Any]:
    """Returns what a command was called with."""
    heard: list[Any] = []
    group = typer.Typer()
    group.callback()(lambda: None)
    command(group, "work", work(heard))
    done = CliRunner().invoke(group, ["work", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return heard


def of_tree(heard: list[Any]) -> Any:
    async def work(tree: Tree, options: Options, as_json: Json = False) -> None:
        heard.extend((type(tree), tree.id, tree.session.id, given(options), as_json))

    return work


def test_a_tree_is_what_its_options_name() -> None:
    assert called(of_tree) == [Tree, "default", "default", {}, False]
    options = ("-s", "library", "--memory", "book", "--least", "2", "--text", "a", "--json")
    assert called(of_tree, *options) == [
        *(Tree, "book", "library", {"least": 2, "texts": ["a"]}, True)
    ]


def test_a_command_of_one_thing_takes_its_name_first() -> None:
    def of_memory(heard: list[Any]) -> Any:
        async def work(memory: NamedMemory, path: Annotated[str, typer.Argument()]) -> None:
            heard.extend((type(memory), memory.id, memory.session.id, path))

        return work

    assert called(of_memory, "notes", "$.x", "-s", "museum") == [Memory, "notes", "museum", "$.x"]

    def of_session(heard: list[Any]) -> Any:
        async def work(session: NamedSession) -> None:
            heard.extend((type(session), session.id))

        return work

    assert called(of_session, "museum") == [Session, "museum"]


def test_a_client_needs_an_address_only() -> None:
    def of_all(heard: list[Any]) -> Any:
        async def work(client: Client) -> None:
            heard.append(client)

        return work

    (client,) = called(of_all, "--address", "127.0.0.1:1")
    assert isinstance(client, Client)


def test_a_token_is_one_or_none() -> None:
    assert Freshness(after="t").wanted() == {"after": "t", "fully_applied": False}
    assert Freshness(applied=True).wanted() == {"after": "", "fully_applied": True}
    for wrong in (Freshness(after=""), Freshness(after="t", applied=True)):
        with pytest.raises(CommandError, match="--after"):
            wrong.wanted()


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("prism", ("--max-children", "--period", "--task-file", "--kind")),
        ("tree", ("--schema", "--task", "--period", "--kind")),
        ("state", ("--schema", "--question", "--max-children", "--kind")),
    ],
)
def test_a_kind_of_memory_has_no_option_of_another(kind: str, others: tuple[str, ...]) -> None:
    for verb in ("create", "rebuild"):
        for option in others:
            done = CliRunner().invoke(app, ["memory", verb, kind, "m", option, "1"])
            assert done.exit_code == 2
            assert f"No such option: {option}" in done.output, done.output
