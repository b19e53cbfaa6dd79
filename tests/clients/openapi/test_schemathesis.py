"""schemathesis calls all operations of /openapi.json, and compares responses with the document."""

import asyncio
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests import ROOT
from tests.clients.keyed import Keyed
from tests.support.harness import absent

HERE = Path(__file__).parent
PROGRAM = ROOT / ".cache/schemathesis/bin/schemathesis"
#: Valid requests are also refused for what no schema says: tokens of pages, times in the past.
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance", "negative_data_rejection"),
    *("missing_required_header", "unsupported_method", "allow_header_conformance", "ignored_auth"),
)
SECONDS = 40
#: Cases that a busy machine tries as well.
MIN_CASES = 200


@pytest.mark.timeout(300)
async def test_all_operations(keyed: Keyed, tmp_path: Path) -> None:
    if not PROGRAM.exists():
        absent("schemathesis, which `make test-clients` installs,")
    running = await asyncio.create_subprocess_exec(
        *(PROGRAM, "run", f"{keyed.url}/openapi.json"),
        *("-H", f"Authorization: Bearer {keyed.token}"),
        *("--seed", "1", "--max-time", str(SECONDS), "--max-examples", "5", "--no-shrink"),
        *("--phases", "examples,coverage,fuzzing", "--checks", ",".join(CHECKS)),
        # Its body is a stream of envelopes, which OpenAPI cannot describe.
        *("--exclude-path", "/palimpsest.v1.SessionService/ImportSession"),
        *("--continue-on-failure", "--request-timeout", "30", "--warnings", "off"),
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1", "SCHEMATHESIS_HOOKS": str(HERE / "hooks.py")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said = (await running.communicate())[0].decode(errors="replace")
    assert running.returncode == 0, said[-20_000:]
    (cases,) = re.findall(r"([0-9,]+) generated", said)
    assert int(cases.replace(",", "")) >= MIN_CASES
