"""`palimpsest export` and `import`, against a running service."""

import asyncio
import json
from pathlib import Path
from uuid import uuid4

from typer.testing import CliRunner

import palimpsest
from service.cli.commands import app


def run(address: str, *arguments: str, input: bytes | None = None) -> tuple[int, str]:
    found = CliRunner().invoke(app, [*arguments, "--address", address], input=input)
    return found.exit_code, found.output + str(found.exception or "")


async def texts(address: str, session: str) -> list[str]:
    async with palimpsest.connect(address) as client:
        return [one.text async for one in client.session(session).chunks()]


async def fill(address: str, session: str) -> None:
    async with palimpsest.connect(address) as client:
        made = await client.create_session(session)
        await made.append([f"text {n}" for n in range(20)])


def test_a_session_moves_by_its_file(address: str, tmp_path: Path) -> None:
    name, file = f"move-{uuid4().hex}", tmp_path / "export.jsonl"
    asyncio.run(fill(address, name))
    assert run(address, "export", name, "--output", str(file))[0] == 0
    whole = file.read_bytes()
    assert file.stat().st_mode & 0o077 == 0
    # Continued after a part of it, also of a line, that others could read.
    file.write_bytes(whole[:-20])
    file.chmod(0o644)
    assert run(address, "export", name, "--output", str(file))[0] == 0
    assert file.read_bytes() == whole
    assert file.stat().st_mode & 0o077 == 0
    code, said = run(address, "export", name, "--output", str(file))
    assert code == 0, said
    assert "has a complete export already" in said
    code, said = run(address, "export", name, "--output", str(tmp_path))
    assert (code, said) == (1, f"cannot write {tmp_path}: Is a directory")
    code, said = run(address, "import", str(file), "--session", f"{name}-2", "--json")
    assert code == 0, said
    assert json.loads(said) == {"session": f"{name}-2", "head": 20}
    assert asyncio.run(texts(address, f"{name}-2")) == [f"text {n}" for n in range(20)]
    code, said = run(address, "import", "-", "--session", f"{name}-3", input=whole)
    assert (code, said) == (0, f"session '{name}-3': 20 chunks\n")
    assert asyncio.run(texts(address, f"{name}-3")) == [f"text {n}" for n in range(20)]
    code, said = run(address, "import", "-", input=b"no export")
    assert code == 1
    assert said.startswith("standard input: ")
    assert "other formats need --from" in said
    code, said = run(address, "import", str(file))
    assert code == 1
    assert "import it under another name" in said
    code, said = run(address, "export", name, "--output", __file__)
    assert code == 1
    assert "no export of a session" in said
    code, said = run(address, "export", f"{name}-2", "--output", str(file))
    assert code == 1
    assert "another session" in said
    code, said = run(address, "session", "delete", name, "--include-imports")
    assert code == 0, said
    fresh = tmp_path / "fresh.jsonl"
    code, said = run(address, "export", f"{name}-2", "--output", str(fresh))
    assert (code, fresh.exists()) == (1, False), said
    code, said = run(address, "export", f"{name}-2")
    assert code == 1
    assert "no session" in said


def test_a_file_of_another_service_is_imported_once(address: str, tmp_path: Path) -> None:
    prefix, file = uuid4().hex, tmp_path / "mem0.json"
    records = [
        {"id": "1", "memory": "Has a dog", "user_id": "ann", "created_at": "2026-01-01T00:00:00Z"},
        {"id": "2", "memory": "Is 30", "user_id": "bob"},
        {"id": "3", "memory": "字" * 400_000, "user_id": "bob"},
        {"id": "4"},
        {"id": "6", "memory": "Owns a boat", "user_id": "cy", "created_at": "at noon"},
    ]
    file.write_text(json.dumps({"results": records}))
    arguments = ("import", str(file), "--from", "mem0", "--session", f"{prefix}-{{user}}")
    code, said = run(address, *arguments, "--strict")
    assert (code, "results[3]" in said) == (1, True)
    for _ in range(2):
        code, said = run(address, *arguments, "--json")
        assert code == 0, said
        assert asyncio.run(texts(address, f"{prefix}-ann")) == ["Has a dog"]
        assert len(asyncio.run(texts(address, f"{prefix}-bob"))) == 8
        assert asyncio.run(texts(address, f"{prefix}-cy")) == ["Owns a boat"]
        assert "read in part: results[4]: its time 'at noon' is none" in said
        assert '"unreadable": 1, "partial": 1' in said
    file.write_text(json.dumps(records[-1:]))
    code, said = run(address, *arguments, "--strict")
    assert (code, "1 record can be read only in part" in said) == (1, True)
    # A later file has more.
    file.write_text(json.dumps([*records[:2], {"id": "5", "memory": "Moved", "user_id": "bob"}]))
    assert run(address, *arguments)[0] == 0
    assert asyncio.run(texts(address, f"{prefix}-bob"))[-1] == "Moved"
    assert len(asyncio.run(texts(address, f"{prefix}-bob"))) == 9
