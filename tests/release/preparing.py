"""Prepares a release: a branch with one commit, packages and notes. Publishes nothing."""

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from tests.release import notes, versions
from tests.release.building import build, commit_time, differing, packages
from tests.release.contents import faults

BRANCH = "main"
NOTES = "RELEASE_NOTES.md"
SUMS = "SHA256SUMS"


class Refused(Exception):
    """The release cannot be prepared; the message says why, and what to do."""


def prepare(
    root: Path, version: str, *, verify: Callable[[], bool], say: Callable[[str], None]
) -> str:
    """Prepares a version in `dist/VERSION` and on a branch of its own; what is left to do.

    Works in a copy of the last commit: the work tree and the branch stay as they are. Can be
    run again. Raises Refused.
    """
    since = _last_tag(root)
    _check_version(root, version, since)
    _check_tree(root)
    changes = notes.unreleased((root / "CHANGELOG.md").read_text())
    if not changes:
        raise Refused("CHANGELOG.md says nothing under `## Unreleased`: what is in this release?")
    if not verify():
        raise Refused("`make verify` failed; what it found is above")
    target = root / "dist" / version
    with tempfile.TemporaryDirectory(prefix="palimpsest-release-") as name:
        work = Path(name)
        tree = work / "tree"
        say("copying the last commit, and giving it its version")
        _commit(root, tree, version)
        exported = _export(tree, "HEAD", work / "exported")
        before = _export(tree, since, work / "before") if since else None
        say("building the packages twice")
        built = work / "built"
        build(exported, built, commit_time(tree))
        wrong = [*differing(exported, built, commit_time(tree))]
        wrong += [fault for one in packages(built) for fault in faults(one)]
        if wrong:
            raise Refused("; ".join(wrong))
        (built / NOTES).write_text(notes.write(version, changes, exported, before, since))
        _write_sums(built)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(built, target)
        _git(root, "fetch", "--quiet", str(tree), f"+HEAD:refs/heads/release-{version}")
    return _left_to_do(version, [one.name for one in packages(target)])


def _check_version(root: Path, version: str, since: str | None) -> None:
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        raise Refused(f"{version!r} is no version: it has three numbers, as 1.2.3")
    current = versions.current(root)
    if since and _key(version) <= _key(since.removeprefix("v")):
        raise Refused(f"{since} is released already; {version} is not after it")
    if _key(version) < _key(current):
        raise Refused(f"the packages are of {current} already; {version} is before it")


def _check_tree(root: Path) -> None:
    branch = _git(root, "branch", "--show-current")
    if branch != BRANCH:
        raise Refused(f"releases are made of {BRANCH}; this is {branch or 'no branch'}")
    if changed := _git(root, "status", "--porcelain"):
        lines = changed.splitlines()
        more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
        raise Refused(f"the work tree is not clean: {lines[0].strip()}{more}; commit it first")
    if strayed := [*versions.strayed(root)]:
        raise Refused("; ".join(strayed))


def _commit(root: Path, tree: Path, version: str) -> None:
    _git(root, "clone", "--quiet", "--shared", "--branch", BRANCH, str(root), str(tree))
    versions.write(tree, version)
    changelog = tree / "CHANGELOG.md"
    day = datetime.now(UTC).date().isoformat()
    changelog.write_text(notes.released(changelog.read_text(), version, day))
    # With the user's name and address of `root`, which a copy does not have.
    who = [f"user.{one}={_git(root, 'config', f'user.{one}')}" for one in ("name", "email")]
    options = [part for one in who for part in ("-c", one)]
    _git(tree, *options, "commit", "--quiet", "--all", "--message", f"release: {version}")


def _export(tree: Path, commit: str, target: Path) -> Path:
    """Returns a commit's files, and nothing else that may lie about."""
    target.mkdir()
    archive = target.with_suffix(".tar")
    _git(tree, "archive", "--output", str(archive), commit)
    subprocess.run(["tar", "-xf", str(archive), "-C", str(target)], check=True)
    return target


def _write_sums(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir())
    lines = [f"{hashlib.sha256((folder / one).read_bytes()).hexdigest()}  {one}" for one in names]
    (folder / SUMS).write_text("\n".join(lines) + "\n")


def _last_tag(root: Path) -> str | None:
    tags = [
        one
        for one in _git(root, "tag", "--list", "v*").splitlines()
        if re.fullmatch(r"v\d+\.\d+\.\d+", one)
    ]
    return max(tags, key=lambda one: _key(one[1:]), default=None)


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(one) for one in version.split("."))


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Refused(f"git {' '.join(arguments)}: {done.stderr.strip() or 'failed'}")
    return done.stdout.strip()


def _left_to_do(version: str, names: list[str]) -> str:
    folder = f"dist/{version}"
    # Each after what it depends on, so that each can be installed as soon as it is there.
    uploads = "\n".join(
        f"  uv publish {' '.join(f'{folder}/{one}' for one in names if part in one)}"
        for part in ("_proto-", "_sdk-", "_server-", "_evaluation-")
    )
    return f"""
{version} is prepared. Nothing is published, no tag is made, and {BRANCH} is as it was.

  {folder}: {len(names)} packages, {NOTES}, {SUMS}
  release-{version}: a branch with {BRANCH} and one commit

Read {folder}/{NOTES} and `git show release-{version}`. What is left to do, in this order:

  git merge --ff-only release-{version}
  git push origin {BRANCH}      # go on when CI has passed it
  git tag --sign v{version} --cleanup=whitespace --file {folder}/{NOTES}
  git push origin v{version}
  (cd {folder} && sha256sum --check {SUMS})
{uploads}
  git switch --detach v{version} && make image      # for your registry; its SBOM is inside

To give it up before that: git branch -D release-{version} && rm -r {folder}"""
