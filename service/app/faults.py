"""Lets the tests of the repository install their fault hook in a process of the service."""

import os
from importlib import import_module

import structlog

from service.settings.environment import FAULTS

#: Packages that a hook may come from. No release contains them.
_PACKAGES = ("tests", "verification")

_log = structlog.get_logger("palimpsest.faults")


def install() -> None:
    """Calls the function that PALIMPSEST_FAULTS names as `module:function`, if it is set.

    A variable of the environment only: no file of settings can name code. Raises ValueError
    for what is no function of the tests.
    """
    entry = os.environ.get(FAULTS)
    if entry is None:
        return
    module, _, function = entry.partition(":")
    if module.partition(".")[0] not in _PACKAGES:
        raise ValueError(f"{FAULTS} is for the tests of the repository only; unset it")
    try:
        hook = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{FAULTS} names no function of the tests: {error}; unset it") from error
    _log.warning("this process fails on purpose", hook=entry)
    hook()
