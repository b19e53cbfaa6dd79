"""Deployments at providers that take more than a URL and a key: what is sent, refused and shown."""

import json
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from service.domain.operations.doctor import Severity
from service.domain.prompting.faults import Fault
from service.llm.providers.doctor import look_at_models
from service.llm.providers.failures import ModelFailure, secrets_of
from service.llm.providers.plans import CallPlan
from service.llm.providers.requests import parameters_of
from service.llm.providers.transport import LitellmTransport
from service.settings.config import Config
from service.settings.deployments import Deployment
from tests.providers.azure import API_VERSION
from tests.providers.bedrock import ACCESS_KEY, REGION
from tests.providers.exchange import Json
from tests.providers.provider import KEY
from tests.providers.server import REPLY, Emulators
from tests.unit.calls.providers.test_requests import ASK

SECRET = "secret-of-the-emulator"


async def test_azure_gets_its_version_by_the_model_of_a_deployment(servers: Emulators) -> None:
    one = Deployment(
        name="sweden",
        model="openai/gpt-4.1-mini",
        litellm_model="azure/our-mini",
        api_base=servers.endpoint("azure").api_base,
        api_key=SecretStr(KEY),
        api_version=API_VERSION,
    )
    config = Config(model=one.model, deployments=(one,))
    done = await LitellmTransport(config).complete(ASK, one.model, CallPlan(deployment="sweden"))
    assert (done.text, done.model) == (REPLY, one.model)
    (seen,) = servers["azure"].seen
    assert seen.request.query == {"api-version": API_VERSION}
    assert seen.request.path == "/openai/deployments/our-mini/chat/completions"


async def test_bedrock_is_signed_for_its_region_at_its_endpoint(
    servers: Emulators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_AWS_SECRET", SECRET)
    end = servers.endpoint("bedrock")
    one = Deployment(
        name="frankfurt",
        model=end.model,
        api_base=end.api_base,
        region=REGION,
        access_key_id=ACCESS_KEY,
        secret_access_key_env="OUR_AWS_SECRET",
        session_token=SecretStr("token-of-the-emulator"),
    )
    config = Config(model=one.model, deployments=(one,))
    done = await LitellmTransport(config).complete(ASK, one.model, CallPlan(deployment="frankfurt"))
    assert done.text == REPLY
    (seen,) = servers["bedrock"].seen
    assert f"/{REGION}/bedrock/" in seen.request.headers["authorization"]
    assert seen.request.headers["x-amz-security-token"] == "token-of-the-emulator"


async def test_openai_gets_organization_and_project(servers: Emulators) -> None:
    end = servers.endpoint("openai")
    one = Deployment(
        name="paid",
        model=end.model,
        api_base=end.api_base,
        api_key=SecretStr(KEY),
        organization="org-ours",
        project="proj-memory",
    )
    config = Config(model=one.model, deployments=(one,))
    await LitellmTransport(config).complete(ASK, one.model, CallPlan(deployment="paid"))
    (seen,) = servers["openai"].seen
    headers = seen.request.headers
    assert (headers["openai-organization"], headers["openai-project"]) == (
        "org-ours",
        "proj-memory",
    )


async def test_vertex_gets_project_location_and_credentials(tmp_path: Path) -> None:
    account = tmp_path / "vertex.json"
    account.write_text("{}")
    one = Deployment(
        name="belgium",
        model="vertex_ai/gemini-2.5-flash",
        project="our-project",
        location="europe-west1",
        credentials=SecretStr(str(account)),
    )
    assert parameters_of(one) == {
        "model": "vertex_ai/gemini-2.5-flash",
        "vertex_project": "our-project",
        "vertex_location": "europe-west1",
        "vertex_credentials": str(account),
    }
    # What it is signed with is a package that has to be installed.
    config = Config(model=one.model, deployments=(one,))
    with pytest.raises(ModelFailure) as caught:
        await LitellmTransport(config).complete(ASK, one.model, CallPlan(deployment="belgium"))
    assert caught.value.fault is Fault.PACKAGE_MISSING


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"model": "openai/gpt-4o", "api_version": "2024-10-21"},
            "'x': openai/gpt-4o takes no api_version; it is for azure, azure_ai",
        ),
        (
            {"model": "azure/mini", "region": "eu-central-1"},
            "'x': azure/mini takes no region; it is for bedrock",
        ),
        (
            {"model": "bedrock/a", "project": "p"},
            "'x': bedrock/a takes no project; it is for openai, vertex_ai",
        ),
        (
            {"model": "anthropic/claude-opus-5", "credentials_env": "PATH"},
            "takes no credentials; it is for vertex_ai",
        ),
        (
            {"model": "bedrock/a", "access_key_id": "AKIA"},
            "'x': access_key_id and secret_access_key go together",
        ),
        (
            {"model": "bedrock/a", "session_token": "t", "session_token_env": "PATH"},
            "gives the deployment 'x' both session_token and session_token_env",
        ),
        (
            {"model": "vertex_ai/g", "credentials_env": "NO_SUCH_VARIABLE_HERE"},
            "the variable NO_SUCH_VARIABLE_HERE for 'x' is not set",
        ),
        (
            {"model": "openai/m", "api_base": "http://me:emulator@there/v1"},
            "deployment 1.api_base: has a login, a query or a fragment",
        ),
        (
            {"model": "openai/m", "api_base": "http://there/v1?api-key=emulator"},
            "deployment 1.api_base: has a login, a query or a fragment",
        ),
        ({"model": "openai/m", "api_key": "emul\nator"}, "deployment 1.api_key: has a line break"),
        ({"model": "openai/m", "api_key": " "}, "deployment 1.api_key: is blank"),
        (
            {"model": "openai/m", "api_key_env": "OUR_BROKEN_KEY"},
            "the variable OUR_BROKEN_KEY for 'x' has a line break",
        ),
        (
            {"model": "bedrock/a", "access_key_id": "AKIA", "secret_access_key": ""},
            "deployment 1.secret_access_key: is blank",
        ),
        (
            {"model": "bedrock/a", "session_token_env": "OUR_BLANK_KEY"},
            "the variable OUR_BLANK_KEY for 'x' is blank",
        ),
        (
            {"model": "openai/m", "litellm_model": "azure/mini"},
            "'x': azure/mini wants an api_base, or the variable AZURE_API_BASE",
        ),
        (
            {"model": "azure_ai/mistral"},
            "the variable AZURE_AI_API_BASE for 'x' has a login, a query or a fragment",
        ),
        (
            {"model": "vertex_ai/g", "credentials": "/no/such/emulator.json"},
            "'x': its credentials are neither a service account as JSON nor the path of a file",
        ),
        (
            {"model": "vertex_ai/g", "credentials": '{"emulator": 1'},
            "'x': its credentials are neither a service account as JSON nor the path of a file",
        ),
        (
            {"model": "vertex_ai/g", "credentials_env": "OUR_BLANK_KEY"},
            "'x': its credentials are neither a service account as JSON nor the path of a file",
        ),
        ({"model": "azure/mini", "api_version": "a b"}, "deployment 1.api_version: "),
    ],
)
def test_what_a_provider_does_not_take_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, fields: Json, said: str
) -> None:
    monkeypatch.delenv("AZURE_API_BASE", raising=False)
    monkeypatch.setenv("AZURE_AI_API_BASE", "https://there/v1?code=emulator")
    monkeypatch.setenv("OUR_BROKEN_KEY", "emul\nator")
    monkeypatch.setenv("OUR_BLANK_KEY", " \n")
    with pytest.raises(ValidationError) as caught:
        Config(deployments=json.dumps([{"name": "x", **fields}]))  # type: ignore[arg-type]
    (error,) = caught.value.errors()
    assert said in error["msg"]
    assert "emulator" not in error["msg"]


def test_azures_address_and_a_service_account_may_stand_in_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account = '{\n "type": "service_account"\n}\n'
    monkeypatch.setenv("AZURE_API_BASE", "https://ours.example")
    monkeypatch.setenv("OUR_ACCOUNT", account)
    vertex = {"name": "v", "model": "vertex_ai/g", "credentials_env": "OUR_ACCOUNT"}
    said = json.dumps([{"name": "a", "model": "azure/mini"}, vertex])
    azure, vertex_ai = Config(deployments=said).deployments  # type: ignore[arg-type]
    assert "api_base" not in parameters_of(azure)
    assert json.loads(vertex_ai.arguments()["vertex_credentials"]) == json.loads(account)
    assert azure.without_secrets()["api_base"] == "https://ours.example"
    # What commands beside it read has neither the variables nor the secrets.
    told = [azure.without_secrets(), vertex_ai.without_secrets()]
    monkeypatch.delenv("AZURE_API_BASE")
    monkeypatch.delenv("OUR_ACCOUNT")
    assert [one.name for one in Config(deployments=told).deployments] == ["a", "v"]  # type: ignore[arg-type]


async def test_doctor_shows_them_without_secrets(servers: Emulators) -> None:
    bedrock = {
        "name": "signed",
        "model": "bedrock/a",
        "region": REGION,
        "access_key_id": "AKID",
        "secret_access_key": SECRET,
    }
    azure = {
        "name": "keyed",
        "model": "azure/mini",
        "api_key": KEY,
        "api_version": API_VERSION,
        "api_base": servers.endpoint("azure").api_base,
    }
    claude = {**servers.endpoint("anthropic").settings["deployments"][0], "name": "claude"}
    config = Config(deployments=[bedrock, azure, claude])  # type: ignore[arg-type]
    assert {SECRET, KEY} <= secrets_of(config)
    _, *found = await look_at_models(config)
    said = {one.name: one.said for one in found}
    assert (
        "bedrock/a, region eu-central-1, access_key_id AKID, secret_access_key set"
        in (said["deployment signed"])
    )
    assert f"api_version {API_VERSION}" in said["deployment keyed"]
    assert {one.name: one.level for one in found}["deployment claude"] is Severity.OK
    for secret in (SECRET, KEY):
        assert secret not in repr(found)
