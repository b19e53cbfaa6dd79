"""Ports of embedded servers: chosen where the kernel gives none away, and never a taken one."""

import socket
import sys
from pathlib import Path

import pytest

from service.local import processes
from service.local.listening_ports import refusal
from service.local.processes import PORTS, free_port
from service.local.stack import Stack, StackError
from service.settings.config import Config

#: Nothing else listens there, on ports beside one that is free.
HOST = "127.0.0.77" if sys.platform == "linux" else "127.0.0.1"


def test_free_ports_are_chosen_where_the_kernel_gives_none_away() -> None:
    found = {free_port() for _ in range(20)}
    assert len(found) > 1
    assert all(port in PORTS for port in found)


def test_a_port_that_is_taken_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        taken = somebody.getsockname()[1]
        monkeypatch.setattr(processes, "PORTS", range(taken, taken + 1))
        assert free_port() != taken


@pytest.mark.parametrize(
    ("setting", "ports_before", "option"),
    [
        ("listen", 0, "--listen (PALIMPSEST_LISTEN)"),
        ("http_listen", 0, "PALIMPSEST_HTTP_LISTEN"),
        ("mutual_tls_listen", 0, "PALIMPSEST_MUTUAL_TLS_LISTEN"),
        ("metrics_listen", 0, "--metrics-listen (PALIMPSEST_METRICS_LISTEN)"),
        # That of the process that makes the calls of the second worker.
        ("metrics_listen", 4, "--metrics-listen (PALIMPSEST_METRICS_LISTEN)"),
    ],
)
def test_a_taken_port_is_named_before_anything_starts(
    tmp_path: Path, setting: str, ports_before: int, option: str
) -> None:
    said: list[str] = []
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        config = Config.model_validate(
            {"listen": "127.0.0.1:0", setting: f"{HOST}:{port - ports_before}"}
        )
        stack = Stack(tmp_path, config, listen=config.listen, workers=2, on_event=said.append)
        with pytest.raises(StackError) as found:
            stack.start()
    assert str(found.value) == (
        f"{HOST}:{port} is in use: stop what listens there (is it another `palimpsest up`?), or"
        f" choose another address with {option}"
    )
    assert "starting PostgreSQL" not in said
    assert not (tmp_path / "postgres").exists()


def test_all_taken_ports_are_named_at_once() -> None:
    with socket.create_server((HOST, 0)) as one, socket.create_server((HOST, 0)) as other:
        listen, metrics = (f"{HOST}:{each.getsockname()[1]}" for each in (one, other))
        config = Config.model_validate({"listen": listen, "metrics_listen": metrics})
        said = refusal(config, listen, None, 0)
    assert said == (
        f"{listen}, {metrics} are in use: stop what listens there (is it another `palimpsest up`?),"
        " or choose other addresses with --listen (PALIMPSEST_LISTEN), --metrics-listen"
        " (PALIMPSEST_METRICS_LISTEN)"
    )
