"""Azure OpenAI: as OpenAI, by deployments, with a filter of its own."""

from collections.abc import Mapping
from typing import ClassVar

from tests.providers.exchange import Invalid, Json, Request, Response, json_response
from tests.providers.openai import ERRORS, OpenAi
from tests.providers.openai_like import STATUSES
from tests.providers.provider import Endpoint
from tests.providers.scenarios import Said, Scenario

API_VERSION = "2024-10-21"
#: Before it a schema of the reply is not taken.
_FIRST_WITH_SCHEMAS = "2024-08-01"
_SAFE = {
    name: {"filtered": False, "severity": "safe"}
    for name in ("hate", "self_harm", "sexual", "violence")
}


class Azure(OpenAi):
    name = "azure"
    model = "azure/my-deployment"
    base = ""
    statuses: ClassVar[Mapping[Scenario, int]] = {**STATUSES, Scenario.PROMPT_FILTERED: 400}
    errors: ClassVar[Mapping[Scenario, tuple[object, str, str]]] = {
        **ERRORS,
        Scenario.KEY_REFUSED: (
            "401",
            "",
            "Access denied due to invalid subscription key or wrong API endpoint. Make sure to"
            " provide a valid key for an active subscription.",
        ),
        Scenario.RATE_LIMIT: ("429", "", "Requests have exceeded the token rate limit."),
        Scenario.RATE_LIMIT_DELAY: (
            "429",
            "",
            "Requests have exceeded the token rate limit. Please retry after 7 seconds.",
        ),
    }

    def endpoint(self, url: str, model: str | None) -> Endpoint:
        return Endpoint(
            model=model or self.model,
            api_base=f"{url}/{self.name}",
            environment={},
            fields={"api_version": API_VERSION},
        )

    def key(self, request: Request) -> str:
        return request.headers.get("api-key", "")

    def check(self, request: Request) -> None:
        before, _, after = request.path.partition("/chat/completions")
        if not before.startswith("/openai/deployments/") or after:
            raise Invalid("path", "Resource not found", status=404, code="404")
        version = request.query.get("api-version", "")
        if not version:
            raise Invalid("version", "Resource not found", status=404, code="404")
        form = request.body.get("response_format") or {}
        if form.get("type") == "json_schema" and version < _FIRST_WITH_SCHEMAS:
            said = "response_format value as json_schema is enabled only for api versions"
            raise Invalid("version", f"{said} 2024-08-01-preview and later")
        super().check(
            Request(path=self.path, query=request.query, headers=request.headers, body=request.body)
        )

    def error(self, scenario: Scenario) -> Response:
        if scenario is not Scenario.PROMPT_FILTERED:
            return super().error(scenario)
        said = (
            "The response was filtered due to the prompt triggering Azure OpenAI's content"
            " management policy. Please modify your prompt and retry."
        )
        result = {**_SAFE, "violence": {"filtered": True, "severity": "medium"}}
        error = {
            "message": said,
            "type": None,
            "param": "prompt",
            "code": "content_filter",
            "status": 400,
            "innererror": {
                "code": "ResponsibleAIPolicyViolation",
                "content_filter_result": result,
            },
        }
        return json_response({"error": error}, 400)

    def beside(self, said: Said) -> Json:
        return {"content_filter_results": _SAFE}

    def extra(self) -> Json:
        return {"prompt_filter_results": [{"prompt_index": 0, "content_filter_results": _SAFE}]}
