"""`python -m tests.eval_local`: `palimpsest eval` with a real small model (`make eval-local`).

The model is there to be exercised: it is far too small to follow the prompts well, and its
scores say nothing about strategies. Everything else is real: prompts, tokens, times. Options of
`palimpsest eval` can be given, and take the place of those here.
"""

import argparse
import json
import os
import subprocess
import sys

from tests.support.engine import CONTEXT_TOKENS, KEY, engine, installed

MODEL = "openai/smollm2-135m-instruct"
#: Questions at once: more only wait for each other, on two cores.
CONCURRENCY = 2
#: What gets through fifty questions in a night: strategies that read a document as it is, few
#: short documents, whose beginnings the engine keeps from one question to the next.
STRATEGIES = "whole,dciso,dciso-rank,dciso-scan,auto,retrieval"
DOCUMENTS = 3
WINDOW_TOKENS = 2048
SUMMARY_TOKENS = 100
#: It continues until it is cut off; nothing is gained by more.
REPLY_TOKENS = 96
#: A prompt of a thousand tokens takes many seconds.
CALL_SECONDS = 600
ANSWER_SECONDS = 3600
#: So small a model goes round in circles unless repeating costs something.
MODEL_SETTINGS = {
    "openai/*": {
        "temperature": 0.2,
        "seed": 1,
        "extra_body": {"repeat_penalty": 1.2, "n_predict": REPLY_TOKENS},
    }
}


def main() -> int:
    """Starts the engine, runs the evaluation, stops the engine; the evaluation's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--limit", type=int, default=6)
    parser.add_argument("--threads", type=int, help="of the engine; default: one for each core")
    arguments, more = parser.parse_known_args()
    if not installed():
        parser.error("the engine is not installed: make setup-local")
    with engine(arguments.threads) as server:
        settings = {
            "PALIMPSEST_MODEL": MODEL,
            "PALIMPSEST_MODEL_BASE_URL": f"{server.url}/v1",
            "PALIMPSEST_MODEL_API_KEY": KEY,
            "PALIMPSEST_MODEL_SETTINGS": json.dumps(MODEL_SETTINGS),
            "PALIMPSEST_MODEL_STRUCTURED_OUTPUT": "true",
            # Requests at the same time share the engine's.
            "PALIMPSEST_MODEL_WINDOW_TOKENS": str(CONTEXT_TOKENS // CONCURRENCY),
            "PALIMPSEST_MODEL_TIMEOUT_SECONDS": str(CALL_SECONDS),
            "PALIMPSEST_WORKER_CONCURRENCY": str(CONCURRENCY),
            "PALIMPSEST_BUILD_CONCURRENCY": str(CONCURRENCY),
        }
        command = [
            *(sys.executable, "-m", "service.cli", "eval", "--shortest", "--no-reasoning"),
            *("--strategies", STRATEGIES, "--documents", str(DOCUMENTS)),
            *("--window", str(WINDOW_TOKENS), "--summary-tokens", str(SUMMARY_TOKENS)),
            *("--dataset", arguments.dataset, "--limit", str(arguments.limit)),
            *("--concurrency", str(CONCURRENCY), "--timeout", str(ANSWER_SECONDS), *more),
        ]
        return subprocess.run(command, env={**os.environ, **settings}, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
