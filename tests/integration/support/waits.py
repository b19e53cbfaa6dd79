"""The error of a wait in tests where nothing is deleted."""

from service.usecases.log.lookup import session_not_found

#: Given to a wait that does not raise it.
GONE = session_not_found("s")
