"""Results of calls to a fake model."""

from service.domain.prompting.ends import End
from service.llm.providers.transport import Completion


def completion(
    text: str,
    model: str,
    *,
    input_tokens: int = 9,
    output_tokens: int = 3,
    cached_tokens: int | None = 0,
    cost_micro_usd: int | None = None,
    end: End = End.COMPLETE,
    said: str = "",
) -> Completion:
    """Returns a reply, and what the provider says that it took."""
    return Completion(
        text=text,
        model=model,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached_tokens,
        cache_write_tokens=None,
        cost_micro_usd=cost_micro_usd,
        end=end,
        said=said,
    )
