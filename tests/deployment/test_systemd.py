"""deploy/systemd: units that systemd takes, that are closed off, and whose commands run so."""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.app import health
from service.settings.environment import unknown_variables
from tests import ROOT
from tests.deployment.compose_file import CALL_SECONDS, program, wrong_command
from tests.deployment.test_compose_rehearsal import QUESTION, append_and_ask
from tests.deployment.watching import free_port
from tests.support.fake_model import fake_model
from tests.support.harness import Process, Servers

HERE = ROOT / "deploy" / "systemd"
SERVICES = ("api", "worker@", "executor", "migrate", "check")
#: Of these each has a process that continues.
RUNNING = ("api", "worker@", "executor")
#: Exposure, as `systemd-analyze security` counts it, in tenths: 0 is none, 100 all.
MOST_EXPOSED = 15
#: What differs between units: the others may do the same.
OPEN = {
    "RestrictAddressFamilies",
    "PrivateNetwork",
}
_PROGRAM = "/opt/palimpsest/bin/palimpsest "
_MOMENT_SECONDS = 10
INSTALL = "make setup-deploy"

Unit = dict[str, list[str]]


def read(folder: Path, name: str) -> Unit:
    """Returns the assignments of a unit file, in order."""
    found: Unit = defaultdict(list)
    for line in (folder / name).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found[key].append(value)
    return found


def unit_name(service: str) -> str:
    return f"palimpsest-{service}.service"


def environment(unit: Unit) -> dict[str, str]:
    return dict(one.split("=", 1) for one in unit["Environment"])


def hardening(folder: Path, service: str) -> list[str]:
    """Returns what a unit may not do, but for what differs."""
    text = (folder / unit_name(service)).read_text()
    lines = text.partition("NoNewPrivileges=")[2].partition("\n\n")[0].splitlines()
    return [line for line in lines[1:] if line.partition("=")[0] not in OPEN]


def faults(folder: Path) -> list[str]:
    """Returns what is wrong with the units, a line each."""
    found, ports = [], set()
    for service in SERVICES:
        unit = read(folder, unit_name(service))
        variables = environment(unit)
        values = {name.removesuffix("_FILE"): value for name, value in variables.items()}
        found += [f"{service}: {name} is no setting" for name, _ in unknown_variables(values)]
        loaded = {one.partition(":")[0] for one in unit["LoadCredential"]}
        named = {value[3:] for value in variables.values() if value.startswith("%d/")}
        if loaded != named:
            found.append(f"{service}: loads {sorted(loaded)} and names {sorted(named)}")
        found += [f"{service}: {name} holds a secret" for name in variables if _is_secret(name)]
        command = unit["ExecStart"][0]
        if command.startswith(_PROGRAM):
            said = wrong_command(command.removeprefix(_PROGRAM).split())
            found += [f"{service}: {said}"] if said else []
        if unit["User"] != ["palimpsest"]:
            found.append(f"{service}: runs as {unit['User']}")
        if hardening(folder, service) != hardening(folder, "api"):
            found.append(f"{service}: may do something else than the API")
    for service in RUNNING:
        unit = read(folder, unit_name(service))
        variables = environment(unit)
        stop = int(variables["PALIMPSEST_STOP_SECONDS"]) + _MOMENT_SECONDS
        if int(unit["TimeoutStopSec"][0]) < stop:
            found.append(f"{service}: is killed before it has stopped")
        if service == "executor" and stop < CALL_SECONDS + _MOMENT_SECONDS:
            found.append(f"{service}: stops before a model call ends")
        if unit["Restart"] != ["on-failure"] or unit["StartLimitIntervalSec"] != ["0"]:
            found.append(f"{service}: does not come back")
        if unit["RuntimeDirectoryPreserve"] != ["yes"] or unit["RuntimeDirectoryMode"] != ["0700"]:
            found.append(f"{service}: takes the others' sockets with it")
        folder_named = f"/run/{unit['RuntimeDirectory'][0]}"
        at = variables["PALIMPSEST_CALLER_SOCKET"]
        if variables["PALIMPSEST_RUN_DIR"] != folder_named or Path(at).parent != Path(folder_named):
            found.append(f"{service}: its sockets are elsewhere")
        if at not in read(folder, unit_name("executor"))["ExecStart"][0]:
            found.append(f"{service}: does not name the executor's socket")
        port = variables["PALIMPSEST_METRICS_LISTEN"].rpartition(":")[2]
        if port in ports:
            found.append(f"{service}: another listens at {port}")
        ports.add(port)
        if unit["ProcSubset"]:
            found.append(f"{service}: cannot read /proc/stat, so it has no process_* metrics")
    return found


def _is_secret(name: str) -> bool:
    return bool(re.search(r"(DATABASE_URL|REDIS_URL|API_KEY|PASSWORD)$", name))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Returns the units, with our programs where theirs would be."""
    folder = tmp_path / "units"
    shutil.copytree(HERE, folder)
    for path in folder.glob("palimpsest*.service"):
        text = path.read_text().replace(_PROGRAM, f"{sys.executable} -m service.cli ")
        text = text.replace("/opt/palimpsest/bin/python", sys.executable)
        text = text.replace("/usr/local/lib/palimpsest", str(HERE))
        path.write_text(text)
    return folder


def verified(folder: Path) -> "subprocess.CompletedProcess[str]":
    names = sorted(path.name for path in folder.glob("palimpsest*.*") if path.suffix in UNITS)
    assert len(names) == len(SERVICES) + 2
    # A template is looked at as one of its instances.
    names = [name.replace("@.", "@1.") for name in names]
    return subprocess.run(
        [program("systemd-analyze", INSTALL), "verify", *(f"./{name}" for name in names)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )


UNITS = {".service", ".timer", ".target"}


def test_systemd_takes_the_units_and_nothing_is_wrong_with_them(copied: Path) -> None:
    done = verified(copied)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert faults(HERE) == []


@pytest.mark.parametrize("service", SERVICES)
def test_a_unit_may_do_little(copied: Path, service: str) -> None:
    name = unit_name(service)
    done = subprocess.run(
        [
            *(program("systemd-analyze", INSTALL), "security", "--offline=true", "--no-pager"),
            *(f"--threshold={MOST_EXPOSED}", f"./{name}"),
        ],
        cwd=copied,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Overall exposure level" in done.stdout


#: A unit, a part of it, what replaces that part, and the expected fault.
BROKEN = {
    "a setting": ("migrate", "_MIGRATION_DATABASE", "_MIGRATIONS_DATABASE", "is no setting"),
    "a command": ("worker@", "palimpsest work", "palimpsest worker", "no command worker"),
    "an option": ("executor", "--socket", "--sockets", "--sockets"),
    "a credential": ("api", "%d/database_url", "%d/database", "and names ['database']"),
    "a secret": ("api", "_URL_FILE=%d/database_url", "_URL=postgresql://", "holds a secret"),
    "root": ("migrate", "User=palimpsest", "User=root", "runs as ['root']"),
    "too little time": ("executor", "TimeoutStopSec=170", "TimeoutStopSec=90", "is killed before"),
    "no time for calls": ("executor", "SECONDS=150", "SECONDS=100", "before a model call ends"),
    "no restart": ("worker@", "Restart=on-failure", "Restart=no", "does not come back"),
    "the others' folder": ("api", "Preserve=yes", "Preserve=no", "takes the others' sockets"),
    "another socket": ("worker@", "executor.sock", "other.sock", "executor's socket"),
    "another folder": ("worker@", "RUN_DIR=/run/palimpsest", "RUN_DIR=/run/x", "are elsewhere"),
    "one port": ("executor", "127.0.0.1:9465", "127.0.0.1:9464", "another listens at 9464"),
    "no figures": (
        "api",
        "NoNewPrivileges=yes\n",
        "ProcSubset=pid\nNoNewPrivileges=yes\n",
        "/proc/stat",
    ),
    "more rights": ("worker@", "ProtectHome=yes\n", "", "may do something else"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_noticed(copied: Path, name: str) -> None:
    service, old, new, said = BROKEN[name]
    folder = copied.parent / "broken"
    shutil.copytree(HERE, folder)
    path = folder / unit_name(service)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    found = faults(folder)
    assert any(said in fault for fault in found), found


def test_systemd_notices_what_it_does_not_know(copied: Path) -> None:
    path = copied / unit_name("api")
    path.write_text(path.read_text().replace("Restart=on-failure", "Restart=on-failures"))
    assert "Failed to parse service restart specifier" in verified(copied).stderr


def test_the_settings_of_all_units_are_ones_and_no_secrets() -> None:
    lines = (HERE / "palimpsest.env").read_text().splitlines()
    given = [line.removeprefix("#") for line in lines if re.match(r"#?[A-Z_]+=", line)]
    variables = dict(line.split("=", 1) for line in given)
    assert {"PALIMPSEST_LISTEN", "PALIMPSEST_MODEL"} <= set(variables)
    assert unknown_variables(variables) == []
    assert [name for name in variables if _is_secret(name)] == []
    for name in ("model.conf", "redis.conf"):
        unit = read(HERE, name)
        (variable, value), *others = environment(unit).items()
        assert others == []
        assert unknown_variables({variable.removesuffix("_FILE"): value}) == []
        credential, _, path = unit["LoadCredential"][0].partition(":")
        assert value == f"%d/{credential}"
        assert path == f"/etc/palimpsest/credentials/{credential}"


def test_users_and_folders_are_made(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    for tool, file in (("sysusers", "palimpsest.sysusers"), ("tmpfiles", "palimpsest.tmpfiles")):
        words = [program(f"systemd-{tool}", INSTALL), f"--root={root}"]
        words += ["--create"] if tool == "tmpfiles" else []
        done = subprocess.run(
            [*words, str(HERE / file)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert "palimpsest:x:" in (root / "etc/passwd").read_text()
    assert (root / "etc/palimpsest/credentials").stat().st_mode & 0o777 == 0o700


HANGING = """
import socket, sys, time
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print("hangs", flush=True)
time.sleep(600)
"""
ANSWERING = """
import os, socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print("answers", flush=True)
while True:
    asking, _ = listening.accept()
    asking.sendall(b'{"cause": "no database"}')
    asking.close()
"""
#: With the folder as a unit without more rights has it (ProtectSystem=strict).
READ_ONLY = """
mount --bind "$0" "$0"
mount -o remount,ro,bind "$0"
exec "$@"
"""
QUICK = """
import runpy, sys
from service.app import health
health.ANSWER_SECONDS = 0.5
script = runpy.run_path(sys.argv[1])
script["main"].__globals__["PAUSE_SECONDS"] = 0.1
script["main"]()
"""


def test_what_hangs_is_killed_and_what_is_only_not_ready_is_not(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o700)
    # What was killed before has left its socket.
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(run_dir / "executor-99999.sock"))
    words = [sys.executable, "-c", QUICK, str(HERE / "end_hung.py")]
    writes = read(HERE, unit_name("check"))["ReadWritePaths"]
    if writes != ["-/run/palimpsest"]:
        words = ["unshare", "--mount", "sh", "-ec", READ_ONLY, str(run_dir), *words]
    started: list[subprocess.Popen[str]] = []
    with ExitStack() as stack:
        for script in (HANGING, ANSWERING):
            # Bound under another name: a socket's has its process's number.
            place = run_dir / f"bound-{len(started)}"
            process = subprocess.Popen(
                [sys.executable, "-c", script, str(place)], stdout=subprocess.PIPE, text=True
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline()
            place.rename(run_dir / f"work-{process.pid}.sock")
            started.append(process)
        hanging, answering = started
        done = subprocess.run(
            words,
            cwd=ROOT,
            env={**os.environ, "PALIMPSEST_RUN_DIR": str(run_dir)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said = f"work {hanging.pid} did not answer 3 times in a row: it is killed\n"
        assert done.stdout == said
        assert hanging.wait() == -signal.SIGKILL
        assert answering.poll() is None


def system_calls(unit: Unit) -> list[str]:
    """Returns the system calls that a unit may make."""
    allowed: set[str] = set()
    for line in unit["SystemCallFilter"]:
        names = _expanded(line.removeprefix("~").split())
        allowed = allowed - names if line.startswith("~") else allowed | names
    return sorted(allowed)


def _expanded(names: list[str]) -> set[str]:
    found: set[str] = set()
    for name in names:
        if not name.startswith("@"):
            found.add(name)
            continue
        listed = subprocess.run(
            [program("systemd-analyze", INSTALL), "--no-pager", "syscall-filter", name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        lines = [line.strip() for line in listed.splitlines()[1:]]
        found |= _expanded([line for line in lines if line and not line.startswith("#")])
    return found


@pytest.fixture
def confined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a Python limited to the system calls of the units, by which processes are started."""
    unit = read(HERE, unit_name("api"))
    restricted = {
        "calls": system_calls(unit),
        "families": unit["RestrictAddressFamilies"][0].split(),
        "no_new_code": unit["MemoryDenyWriteExecute"] == ["yes"],
    }
    words = [sys.executable, "-m", "tests.deployment.sandbox", json.dumps(restricted)]
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {shlex.join([*words, sys.executable])} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return script


FORBIDDEN = """
import ctypes, mmap, os, socket
refused = []
for name, make in {
    "new code": lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC),
    "packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    "root": lambda: os.chroot("/"),
    "limits": lambda: os.setpriority(os.PRIO_PROCESS, 0, 5),
}.items():
    try:
        make()
    except PermissionError:
        refused.append(name)
socket.socket(socket.AF_INET).close()
print(refused)
"""


def test_the_filter_of_these_tests_refuses_what_the_units_may_not(confined: Path) -> None:
    done = subprocess.run(
        [str(confined), "-c", FORBIDDEN], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (
        0,
        "['new code', 'packets', 'root', 'limits']\n",
    ), done.stderr


def test_what_the_units_run_works_under_their_filter(
    servers: Servers, confined: Path, tmp_path: Path
) -> None:
    credentials, run_dir = tmp_path / "credentials", tmp_path / "run"
    for folder in (credentials, run_dir):
        folder.mkdir(mode=0o700)
    url, listen = servers.new_database(), f"127.0.0.1:{free_port()}"

    def variables(service: str, *more: str) -> dict[str, str]:
        """Returns those of a unit, in the places of this machine."""
        units = (read(HERE, name) for name in (unit_name(service), *more))
        places = {"%d": str(credentials), "/run/palimpsest": str(run_dir)}
        found = {name: value for unit in units for name, value in environment(unit).items()}
        if "PALIMPSEST_METRICS_LISTEN" in found:
            found["PALIMPSEST_METRICS_LISTEN"] = f"127.0.0.1:{free_port()}"
        return {name: placed(value, places) for name, value in found.items()}

    def command(service: str) -> str:
        words = read(HERE, unit_name(service))["ExecStart"][0].removeprefix(_PROGRAM)
        return placed(words, {"/run/palimpsest": str(run_dir)})

    with fake_model() as model, ExitStack() as stack:
        answer = "On Mondays."
        topic = '[OBJECTS FOR ADD]\n{"$.topics.museum": {"add": ["closed on Mondays"]}}'
        model.reply = lambda n: answer if QUESTION in model.prompts[n - 1] else topic
        given = {
            "database_url": url,
            "migration_database_url": url,
            "redis_url": servers.valkey.url,
            "model_api_key": "sk-not-to-be-logged",
        }
        for name, secret in given.items():
            (credentials / name).write_text(secret)
        # As palimpsest.env would.
        settings = {
            "PALIMPSEST_LISTEN": listen,
            "PALIMPSEST_MODEL": "openai/fake",
            "PALIMPSEST_MODEL_BASE_URL": model.url,
        }
        migrated = subprocess.run(
            [str(confined), "-m", "service.cli", *command("migrate").split()],
            cwd=ROOT,
            env={**os.environ, **variables("migrate")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert migrated.returncode == 0, migrated.stderr
        started = []
        for service, ready in (("executor", "calling"), ("worker@", "working"), ("api", "listen")):
            more = variables(service, "model.conf", "redis.conf")
            process = Process(command(service), {**settings, **more}, ready, forks=False)
            stack.callback(process.close)
            started.append(process)
        assert asyncio.run(append_and_ask(listen, ["Closed on Mondays."])) == (1, answer)
        found = health.ask(run_dir)
        assert sorted(one.kind for one in found) == ["executor", "serve", "work"]
        assert all(one.ready for one in found), found
        # The executor last: it is there for all the others.
        for process in reversed(started):
            assert process.stop() == 0, process.log()
            assert "Operation not permitted" not in process.log()


def placed(text: str, places: dict[str, str]) -> str:
    for there, here in places.items():
        text = text.replace(there, here)
    return text
