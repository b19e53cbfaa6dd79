"""How long `up` waits for what it stops."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from service.local.stack import STOP_SECONDS, Stack
from service.settings.config import Config


@pytest.mark.parametrize("seconds", [2.0, 120.0])
def test_processes_get_the_time_to_stop_that_was_set(tmp_path: Path, seconds: float) -> None:
    stack = Stack(tmp_path, Config(stop_seconds=seconds), listen="127.0.0.1:0")
    process = Mock(stdout=None)
    process.poll.return_value = None
    stack._api._popen = process
    stack.stop()
    process.terminate.assert_called_once_with()
    process.wait.assert_called_once_with(seconds + STOP_SECONDS)
    process.kill.assert_not_called()
