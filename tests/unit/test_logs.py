import json
import subprocess
import sys

SCRIPT = """
import logging
import structlog
from service import logs
logs.configure("info", "json")
log = structlog.get_logger("palimpsest.test")
log.info("event", api_key="sk-1", password="pw", url="postgresql://u:pw@h/d", count=3)
log.debug("not shown")
logging.getLogger("library").warning("from postgresql://u:pw@h/d")
logging.getLogger("procrastinate").info("not shown either")
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
        "from postgresql://u:***@h/d",
        "failed",
    ]
    first = lines[0]
    assert (first["api_key"], first["password"], first["count"]) == ("***", "***", 3)
    assert first["url"] == "postgresql://u:***@h/d"
    assert first["logger"] == "palimpsest.test"
    assert "ValueError: bad" in lines[2]["exception"]
    assert done.stdout == ""
