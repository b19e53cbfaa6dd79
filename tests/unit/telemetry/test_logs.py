import json
import subprocess
import sys

import pytest
from opentelemetry import trace

from service.telemetry import logs

SCRIPT = """
import logging
import structlog
from service.telemetry import logs
logs.configure("info", "json")
log = structlog.get_logger("palimpsest.test")
log.info("event", api_key="sk-1", password="pw", url="postgresql://u:p@w/x@h/d", count=3)
log.info("nested", options={"api_key": "sk-1", "hosts": ["redis://:p@w@h:6379"]},
    read_token="t", prompt_tokens=7, cause="host=h password='p w' user=u")
log.debug("not shown")
logging.getLogger("library").warning("from postgresql://u:pw@h/d")
logging.getLogger("alembic").info("not shown either")
logging.getLogger("sqlalchemy.pool.impl.AsyncAdaptedQueuePool").error("a reset failed")
logging.getLogger("psycopg.pool").warning("discarding a connection")
try:
    raise ValueError("bad")
except ValueError:
    log.exception("failed")
"""


def test_logs_are_one_json_object_a_line_and_hold_no_secrets() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == [
        "event",
        "nested",
        "from postgresql://u:***@h/d",
        "failed",
    ]
    first = lines[0]
    assert (first["api_key"], first["password"], first["count"]) == ("***", "***", 3)
    assert first["url"] == "postgresql://u:***@h/d"
    assert first["logger"] == "palimpsest.test"
    assert lines[1]["options"] == {"api_key": "***", "hosts": ["redis://:***@h:6379"]}
    assert (lines[1]["read_token"], lines[1]["prompt_tokens"]) == ("***", 7)
    assert lines[1]["cause"] == "host=h password=*** user=u"
    assert "ValueError: bad" in lines[3]["exception"]
    assert done.stdout == ""


def test_long_lines_are_masked_in_a_time_that_grows_with_them_alone() -> None:
    # A time that grows with the square would be half an hour for these.
    logins = "a://b:" * 200_000
    line = f"x@ {logins} redis://u:{'p' * 2000}@h y"
    event = logs.hide_secrets(None, "info", {"event": line, "other": f"x@{logins}"})
    assert event == {"event": f"x@ {logins} redis://u:***@h y", "other": f"x@{logins}"}
    assert logs.hide_secrets(None, "info", {"event": f"{logins}@h"}) == {"event": "a://b:***@h"}


@pytest.mark.parametrize(
    ("said", "masked"),
    [
        ("at redis://:p@w@h:6379, and", "at redis://:***@h:6379, and"),
        ("x://u:p/w@h y://v:q@i", "x://u:***@h y://v:***@i"),
        ("x://u:@h", "x://u:@h"),
        ("x://u@h:1/y", "x://u@h:1/y"),
        ("me@h x://h:1/y", "me@h x://h:1/y"),
        ("(x://u:p@h)", "(x://u:***@h)"),
    ],
)
def test_passwords_of_addresses_are_masked(said: str, masked: str) -> None:
    assert logs.hide_secrets(None, "info", {"event": said}) == {"event": masked}


def test_logs_name_the_span_they_are_written_in() -> None:
    context = trace.SpanContext(
        trace_id=0xA, span_id=0xB, is_remote=False, trace_flags=trace.TraceFlags(1)
    )
    with trace.use_span(trace.NonRecordingSpan(context)):
        event = logs.add_trace(None, "info", {})
    assert event == {"trace_id": f"{0xA:032x}", "span_id": f"{0xB:016x}"}
    assert logs.add_trace(None, "info", {}) == {}
