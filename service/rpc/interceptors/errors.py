"""Turns errors into google.rpc.Status."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import structlog
from grpc.aio import AbortError, InternalError

from service.domain.values.errors import PalimpsestError
from service.rpc.errors import abort_arguments, internal_error
from service.rpc.interceptors.base import Around, Context
from service.usecases.log.database_words import unavailable
from storage.engine.errors import Busy, NotSupported, Unreachable

_log = structlog.get_logger("palimpsest.rpc")


class Errors(Around):
    """Ends a call that raised with the status that fits."""

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        """Maps the tree of `service.domain.values.errors` to codes; the rest is INTERNAL."""
        try:
            yield
        except PalimpsestError as error:
            await context.abort(*abort_arguments(error))
        except (Unreachable, Busy, NotSupported) as error:
            _log.warning("database trouble", method=method, cause=str(error))
            await context.abort(*abort_arguments(unavailable(error)))
        except (AbortError, InternalError):
            # The call has ended already, or gRPC could not send: the client is gone.
            raise
        except Exception as error:
            if getattr(context, "done", lambda: False)():
                raise
            # A defect of ours ends this call, not the server; the client gets a
            # number to report, the log the rest.
            incident = str(uuid4())
            _log.exception("call failed", method=method, incident=incident, exc_info=error)
            await context.abort(*abort_arguments(internal_error(incident)))
