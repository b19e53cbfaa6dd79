"""Listens on this machine, or with TLS and authentication, unless both are waived."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from service.app.foundation import CannotStart
from service.app.serve import serve
from service.cli import output, run
from service.local.stack import Stack, StackError
from service.settings.config import Config
from service.settings.listening import (
    access_line,
    is_authenticated,
    is_local,
    metrics_refusal,
    refusal,
)

OPEN = "0.0.0.0:1 can be reached from other machines, and there is no authentication"
TLS = {"tls_certificate_file": "/api.pem", "tls_key_file": "/api.key"}


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
def test_all_else_needs_tls_and_authentication(address: str) -> None:
    assert not is_local(address)
    given = {"listen": address, **TLS}
    said = refusal(Config.model_validate({"listen": address}))
    assert said is not None
    assert said.startswith(f"{address} can be reached from other machines, and there is no TLS")
    assert "--insecure (PALIMPSEST_INSECURE=true)" in said
    assert is_authenticated(Config(listen=address)), "a start with --insecure alone says so"
    assert refusal(Config.model_validate(given)) is None
    assert is_authenticated(Config.model_validate(given))
    said = refusal(Config.model_validate({**given, "authentication": "none"}))
    assert said is not None
    assert "there is no authentication: any client can read and write all sessions" in said


@pytest.mark.parametrize(
    ("given", "authenticated", "line"),
    [
        ({}, False, "Clients need no key and act for the default tenant: only this machine"),
        (
            {"authentication": "required"},
            True,
            "Clients need a key, a token or a certificate; WITH",
        ),
        (
            {"listen": "0.0.0.0:1", **TLS},
            True,
            "Clients need a key, a token or a certificate; by TLS",
        ),
        ({"mutual_tls_listen": "0.0.0.0:1", **TLS}, True, "Clients need a key"),
        (
            {"mutual_tls_listen": "0.0.0.0:1", "tls_client_ca_file": "/roots", **TLS},
            True,
            "Clients need a key, a token or a certificate; by TLS; with a certificate at 0.0.0.0:1",
        ),
        (
            {"listen": "0.0.0.0:1", "insecure": True},
            False,
            f"INSECURE: {OPEN}: any client can read and write all sessions, spend money on models,"
            " and remove budgets; there is no TLS",
        ),
        (
            {"listen": "0.0.0.0:1", "insecure": True, **TLS},
            False,
            f"INSECURE: {OPEN}",
        ),
        (
            {"listen": "0.0.0.0:1", "insecure": True, "authentication": "required"},
            True,
            "Clients need a key, a token or a certificate; WITHOUT TLS",
        ),
    ],
)
def test_a_start_says_who_may_use_it(given: dict[str, Any], authenticated: bool, line: str) -> None:
    config = Config.model_validate(given)
    assert refusal(config) is None
    assert is_authenticated(config) is authenticated
    assert access_line(config).startswith(line)


@pytest.mark.parametrize(
    "credentials",
    [
        {"jwt_issuer": "https://issuer.example.org", "jwt_audience": "memory"},
        {"tls_client_ca_file": "/ca.pem", **TLS},
    ],
)
@pytest.mark.parametrize("place", [{}, {"listen": "0.0.0.0:1", "insecure": True}])
def test_what_verifies_tokens_or_certificates_requires_them_anywhere(
    credentials: dict[str, Any], place: dict[str, Any]
) -> None:
    given = {**credentials, **place}
    assert is_authenticated(Config.model_validate(given))
    assert not is_authenticated(Config.model_validate({**given, "authentication": "none"}))


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
