"""Where the API listens: on this machine, unless it is said that all may do everything."""

import asyncio
from pathlib import Path

import pytest

from service.app.foundation import CannotStart
from service.app.serve import serve
from service.cli import output, run
from service.local.stack import Stack, StackError
from service.settings.config import Config
from service.settings.listening import is_local, metrics_refusal, refusal


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:50051",
        "127.1.2.3:0",
        "localhost:1",
        "[::1]:50051",
        "[::ffff:127.0.0.1]:5",
        "unix:/run/palimpsest.sock",
        "unix:relative",
    ],
)
def test_what_only_this_machine_reaches_needs_no_word(address: str) -> None:
    assert is_local(address)
    assert refusal(Config(listen=address)) is None


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:50051",
        "[::]:50051",
        "10.0.0.7:1",
        "[::ffff:10.0.0.7]:1",
        "palimpsest.internal:50051",
        "localhost.example:1",
        "ipv4:0.0.0.0:1",
        "127.0.0.1:1,0.0.0.0:2",
        "*:50051",
    ],
)
def test_all_else_is_refused_and_says_what_is_open(address: str) -> None:
    assert not is_local(address)
    said = refusal(Config(listen=address))
    assert said is not None
    assert said.startswith(f"{address} can be reached from other machines")
    assert "there is no authentication" in said
    assert "--insecure (PALIMPSEST_INSECURE=true)" in said
    assert refusal(Config(listen=address, insecure=True)) is None


def test_up_refuses_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_LISTEN", "0.0.0.0:0")
    with pytest.raises(output.CommandError, match="--insecure"):
        run.up()


async def test_serve_refuses_unless_it_is_accepted() -> None:
    with pytest.raises(CannotStart, match="--insecure"):
        await serve(Config(listen="0.0.0.0:0"), asyncio.Event(), lambda _: None)
    # Accepted, it continues with what it needs next.
    with pytest.raises(CannotStart, match="PALIMPSEST_DATABASE_URL is not set"):
        await serve(Config(listen="0.0.0.0:0", insecure=True), asyncio.Event(), lambda _: None)


@pytest.mark.parametrize(
    ("address", "ports", "fits"),
    [
        (None, 1, True),
        ("127.0.0.1:0", 128, True),
        ("127.0.0.1:65534", 1, True),
        ("127.0.0.1:65535", 1, False),
        ("[::1]:65533", 2, True),
        ("[::1]:65533", 3, False),
    ],
)
def test_metrics_of_more_processes_need_ports_that_are_there(
    address: str | None, ports: int, fits: bool
) -> None:
    said = metrics_refusal(Config(metrics_listen=address), ports)
    assert (said is None) == fits
    assert said is None or (f"{address}: " in said and f"up to {65535 - ports}" in said)


def test_work_and_up_refuse_a_port_that_has_too_few_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALIMPSEST_METRICS_LISTEN", "127.0.0.1:65535")
    with pytest.raises(output.CommandError, match="up to 65534"):
        run.work()
    config = Config(metrics_listen="127.0.0.1:65532")
    stack = Stack(tmp_path / "data", config, listen="127.0.0.1:0", workers=2)
    with pytest.raises(StackError, match="up to 65531"):
        stack.start()
    assert not (tmp_path / "data").exists(), "nothing was begun"
