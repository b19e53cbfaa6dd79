"""A release is prepared whole, from one commit, and nothing of it is published."""

import subprocess
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tests import ROOT
from tests.release import contents, versions
from tests.release.building import packages
from tests.release.preparing import Refused, prepare
from tests.verify import tracked

pytestmark = pytest.mark.prove


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all: change something")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Returns the project's files as they are, in a repository of their own."""
    folder = tmp_path / "repository"
    for path in tracked():
        if "tests" not in path.relative_to(ROOT).parts:
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "config", "user.name", "Somebody")
    git(folder, "config", "user.email", "somebody@example.org")
    commit(folder)
    return folder


def prepared(repository: Path, version: str, verified: bool = True) -> str:
    """Prepares a release there; what is left to do."""
    return prepare(repository, version, verify=lambda: verified, say=lambda _: None)


def test_two_releases_one_after_the_other(repository: Path) -> None:
    first = versions.current(repository)
    before = git(repository, "rev-parse", "main")
    left = prepared(repository, first)
    folder = repository / "dist" / first
    assert len(packages(folder)) == 8
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True)
    assert "This is the first release." in (folder / "RELEASE_NOTES.md").read_text()
    # Nothing is done yet but what can be thrown away.
    assert git(repository, "rev-parse", "main") == before
    assert git(repository, "status", "--porcelain") == git(repository, "tag") == ""
    published = [line.split() for line in left.splitlines() if "uv publish" in line]
    assert sorted(Path(one).name for line in published for one in line[2:]) == [
        one.name for one in packages(folder)
    ]
    assert [Path(line[2]).name.split("-")[0] for line in published] == [
        "palimpsest_proto",
        "palimpsest_sdk",
        "palimpsest_server",
        "palimpsest_evaluation",
    ]

    git(repository, "merge", "--quiet", "--ff-only", f"release-{first}")
    git(repository, "tag", f"v{first}")
    with pytest.raises(Refused, match=r"CHANGELOG\.md says nothing under `## Unreleased`"):
        prepared(repository, "99.0.0")
    changelog = repository / "CHANGELOG.md"
    edit(changelog, "## Unreleased\n", "## Unreleased\n\n### Added\n- Doors that open.\n")
    migration = repository / "migrations/versions/9999_doors.py"
    migration.write_text('"""Doors open.\n\nRevision: 9999\n"""\n')
    edit(repository / "service/settings/environment.py", '"PARENT_FD"', '"PARENT_FD", "DOORS"')
    baseline = repository / "proto/baseline.binpb"
    files = FileDescriptorSet.FromString(baseline.read_bytes())
    (log,) = (file for file in files.file if file.name.endswith("v1/session_service.proto"))
    gone = log.service[0].method.pop().name
    baseline.write_bytes(files.SerializeToString())
    commit(repository)

    prepared(repository, "99.0.0")
    folder = repository / "dist/99.0.0"
    assert (
        (folder / "RELEASE_NOTES.md").read_text()
        == f"""# Palimpsest 99.0.0

### Added
- Doors that open.

## Upgrading from v{first}

### Migrations (`palimpsest migrate`, before the new processes)

- new: 9999: Doors open.

### Settings

- new: `PALIMPSEST_DOORS`

### API (`palimpsest.v1`)

- gone: `{log.service[0].name}.{gone}`
"""
    )
    (wheel,) = folder.glob("palimpsest_server-99.0.0-*.whl")
    said = contents.metadata(wheel)
    assert str(said.version) == "99.0.0"
    assert {"palimpsest-proto==99.0.0", "palimpsest-sdk==99.0.0"} <= {
        str(one) for one in said.requires_dist or ()
    }
    git(repository, "merge", "--quiet", "--ff-only", "release-99.0.0")
    assert list(versions.strayed(repository)) == []
    assert "## Unreleased\n\n## 99.0.0 - 20" in changelog.read_text()


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("1.0", "'1.0' is no version: it has three numbers, as 1.2.3"),
        ("0.0.1", "the packages are of .* already; 0.0.1 is before it"),
        ("99.0.0", "`make verify` failed"),
    ],
)
def test_what_is_refused(repository: Path, version: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        prepared(repository, version, verified=False)
    assert not (repository / "dist").exists()


def test_a_work_tree_that_is_not_clean_is_refused(repository: Path) -> None:
    (repository / "service/new.py").write_text("")
    with pytest.raises(Refused, match=r"not clean: \?\? service/new\.py; commit it first"):
        prepared(repository, "99.0.0")


def test_another_branch_is_refused(repository: Path) -> None:
    git(repository, "switch", "--quiet", "--create", "trial")
    with pytest.raises(Refused, match="releases are made of main; this is trial"):
        prepared(repository, "99.0.0")


def test_packages_of_two_versions_are_refused(repository: Path) -> None:
    edit(repository / "proto/pyproject.toml", 'version = "', 'version = "7')
    commit(repository)
    with pytest.raises(Refused, match=r"proto/pyproject\.toml says"):
        prepared(repository, "99.0.0")
