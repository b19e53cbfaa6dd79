"""The doctor calls the API over HTTP: in the clear, by TLS, with keys, and another server."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from service.cli.doctor_http import check_http, judge_description, judge_expiry, judge_keys
from service.cli.output import CommandError
from service.domain.operations.doctor import Finding, Severity
from service.settings.config import Config
from tests.acceptance.access.serving import serving_both
from tests.support.certificates import DAY, Authority
from tests.support.status_server import answering

ANY = "127.0.0.1:0"
AUTHORITY = Authority()
OURS = b'{"info": {"title": "Palimpsest"}}'


def levels(found: list[Finding]) -> list[tuple[str, Severity]]:
    """Returns what was checked; each that is not well has advice, and no other."""
    for one in found:
        assert bool(one.advice) == (one.level is not Severity.OK), one
    return [(one.name, one.level) for one in found]


async def test_an_api_of_this_machine_alone_is_well_without_keys(url: str) -> None:
    async with serving_both(url, http_listen=ANY) as (_, at):
        found = await check_http(None, Config(http_listen=at.removeprefix("http://")))
        assert levels(found) == [("http", Severity.OK), ("http keys", Severity.OK)]
        assert found[0].said == f"{at} serves, with the methods of this release"
        assert "need no key" in found[1].said
        named = await check_http(f"{at}/", Config())
        assert named == found
        # It should have keys by the settings, and has none.
        required = await check_http(at, Config(authentication="required"))
        assert levels(required) == [("http", Severity.OK), ("http keys", Severity.BAD)]
        by_tls = await check_http(at.replace("http:", "https:"), Config())
        assert levels(by_tls) == [("http", Severity.WARN)]
        assert "by https://" in by_tls[0].advice


async def test_an_api_with_tls_and_keys(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = AUTHORITY.issue("localhost", ends=5 * DAY).write(tmp_path, "api")
    root = tmp_path / "root.pem"
    root.write_bytes(AUTHORITY.root.pem)
    files = {"tls_certificate_file": certificate, "tls_key_file": key}
    async with serving_both(url, http_listen=ANY, authentication="required", **files) as (_, at):
        address = at.removeprefix("https://")
        config = Config.model_validate({"http_listen": address, **files})
        own = await check_http(None, config)
        assert levels(own) == [
            ("http", Severity.OK),
            ("http tls", Severity.WARN),
            ("http keys", Severity.OK),
        ]
        assert own[1].said.endswith("in 4 day(s)")
        assert own[2].said == "calls without a key are refused"
        stranger = await check_http(at, Config())
        assert levels(stranger) == [("http tls", Severity.BAD)]
        assert "PALIMPSEST_CA_FILE" in stranger[0].advice
        monkeypatch.setenv("PALIMPSEST_CA_FILE", str(root))
        assert await check_http(at, Config()) == own
        plain = await check_http(f"http://{address}", Config())
        assert levels(plain) == [("http", Severity.WARN)]
    monkeypatch.setenv("PALIMPSEST_CA_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(CommandError, match="PALIMPSEST_CA_FILE cannot be used"):
        await check_http(at, Config())


@pytest.mark.parametrize(
    ("status", "level"), [(200, Severity.WARN), (404, Severity.WARN), (503, Severity.BAD)]
)
async def test_another_server_is_no_api(status: int, level: Severity) -> None:
    with answering(status) as at:
        found = await check_http(at, Config())
    assert levels(found) == [("http", level)]


async def test_where_nothing_is_to_be_called() -> None:
    assert await check_http(None, Config()) == []
    (gone,) = await check_http("http://127.0.0.1:1", Config())
    assert (gone.level, gone.said) == (
        Severity.OK,
        "nothing listens at http://127.0.0.1:1, which is no error by itself",
    )
    (picked,) = await check_http(None, Config(http_listen=ANY))
    assert "--http-url" in picked.said
    mutual = Config(http_listen="127.0.0.1:1", tls_client_ca_file=Path("/ca.pem"))
    (unasked,) = await check_http(None, mutual)
    assert "with a certificate only" in unasked.said


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:50080",
        "grpc://a:1",
        "http://",
        "http://u:p@a",
        "http://a:x",
        "http://a?b",
        "http://\0",
    ],
)
async def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(CommandError, match="has to be http://HOST:PORT") as refused:
        await check_http(url, Config())
    assert "u:p" not in str(refused.value)


@pytest.mark.parametrize(
    ("status", "content", "level", "said"),
    [
        (200, OURS, Severity.WARN, "another release"),
        (200, b"[" * 100_000, Severity.WARN, "not as Palimpsest"),
        (200, b'{"info": []}', Severity.WARN, "not as Palimpsest"),
        (301, OURS, Severity.WARN, "answers 301"),
        (403, b"", Severity.BAD, "refuses requests for this host"),
        (502, b"", Severity.BAD, "answers 502"),
    ],
)
def test_descriptions(status: int, content: bytes, level: Severity, said: str) -> None:
    found = judge_description("http://a", status, content)
    assert levels([found]) == [("http", level)]
    assert said in found.said


def test_certificates_are_renewed_in_time() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for left, level in ((timedelta(days=22), Severity.OK), (timedelta(days=20), Severity.WARN)):
        assert levels([judge_expiry("https://a", now + left, now)]) == [("http tls", level)]


@pytest.mark.parametrize(
    ("address", "status", "settings", "level"),
    [
        ("0.0.0.0:1", 401, {}, Severity.OK),
        ("0.0.0.0:1", 400, {}, Severity.BAD),
        ("memory.example.org:1", 400, {}, Severity.BAD),
        ("0.0.0.0:1", 400, {"insecure": True}, Severity.WARN),
        ("127.0.0.1:1", 400, {}, Severity.OK),
        ("127.0.0.1:1", 503, {}, Severity.WARN),
        # What terminates TLS forwards the calls of other machines to it.
        ("127.0.0.1:1", 400, {"authentication": "required"}, Severity.BAD),
    ],
)
def test_keys_are_required_beyond_this_machine(
    address: str, status: int, settings: dict[str, bool | str], level: Severity
) -> None:
    found = judge_keys(address, status, Config.model_validate(settings))
    assert levels([found]) == [("http keys", level)]
