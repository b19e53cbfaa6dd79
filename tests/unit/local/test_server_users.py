"""The user of servers that root starts, and the warning about a shared one."""

import os
import pwd
from pathlib import Path

import pytest

from service.local.processes import NOBODY, SERVER_USERS, ServerUser
from service.local.stack import Stack
from service.settings.config import Config


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where root starts, and of the users for servers only the last one is there."""
    entry = pwd.getpwnam(NOBODY)

    def getpwnam(name: str) -> pwd.struct_passwd:
        if name in SERVER_USERS[:-1]:
            raise KeyError(name)
        return entry

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", getpwnam)


@pytest.mark.usefixtures("only")
def test_the_user_nobody_is_shared_with_other_services() -> None:
    user = ServerUser.current()
    assert (user.uid, user.other, user.shared) == (pwd.getpwnam(NOBODY).pw_uid, True, True)


def test_others_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = pwd.getpwnam(NOBODY)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", lambda name: entry)
    assert not ServerUser.current().shared


@pytest.mark.usefixtures("only")
def test_a_start_says_that_the_user_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    stack = Stack(tmp_path, Config(), listen="127.0.0.1:0", on_event=said.append)

    class Enough(Exception):
        """What comes after it is no part of the test."""

    def stop_here() -> str:
        raise Enough

    monkeypatch.setattr(stack, "_database_url", stop_here)
    with pytest.raises(Enough):
        stack.start()
    assert [one for one in said if one.startswith("PostgreSQL and Valkey run as nobody")]
