"""Runs pip-audit on the locks, and says so where it cannot: an audit is worth no failed change."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCKS = ("server", "embedded")
#: How long the database of vulnerabilities may take to reply, in seconds, and all of it.
REPLY_SECONDS, ALL_SECONDS = 15, 300
#: What pip-audit writes when it does not reach that.
UNREACHABLE = ("ServiceError", "ConnectionError", "ConnectTimeout", "Max retries", "timed out")


def main() -> None:
    """Exits with 1 only where a vulnerability is known."""
    program = shutil.which("pip-audit")
    if program is None:
        print("audit skipped: pip-audit is not installed (pipx install pip-audit)")
        return
    for lock in LOCKS:
        named = ROOT / f"requirements/{lock}.lock"
        command = [program, "--requirement", str(named), "--disable-pip", "--require-hashes"]
        command += ["--progress-spinner", "off", "--timeout", str(REPLY_SECONDS)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=ALL_SECONDS
            )
        except subprocess.TimeoutExpired:
            print(f"audit of {lock}.lock skipped: it took more than {ALL_SECONDS} seconds")
            continue
        said = (done.stdout + done.stderr).strip()
        if done.returncode and any(word in said for word in UNREACHABLE):
            print(f"audit of {lock}.lock skipped: its database of vulnerabilities is not reached")
        elif done.returncode:
            sys.exit(f"{lock}.lock:\n{said}")
        else:
            print(f"audit of {lock}.lock: {said}")


if __name__ == "__main__":
    main()
