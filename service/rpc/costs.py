"""Between the proto's messages about costs and our values."""

from datetime import date

from palimpsest.v1alpha1 import usage_pb2
from service.domain.spend.costs import LogCost
from service.domain.state.accounting import Accounting, Loop
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.usecases.spend.comparing import Compared
from service.usecases.spend.costs import Cost, CostQuery
from storage.spend.spend import Days, Spend, SpendLevel, SpendLine

LEVELS = {
    usage_pb2.SPEND_LEVEL_UNSPECIFIED: SpendLevel.TENANT,
    usage_pb2.SPEND_LEVEL_TENANT: SpendLevel.TENANT,
    usage_pb2.SPEND_LEVEL_SESSION: SpendLevel.SESSION,
    usage_pb2.SPEND_LEVEL_MEMORY: SpendLevel.MEMORY,
}


def asked(request: usage_pb2.ListSpendRequest | usage_pb2.GetCostRequest) -> CostQuery:
    """Whose costs of which days. Raises InvalidInput."""
    days = Days(first=_day(request.from_day, "from_day"), last=_day(request.to_day, "to_day"))
    return CostQuery(session=request.session, memory=request.memory, days=days)


def _day(text: str, field: str) -> date | None:
    if not text:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            Reason.FIELD_INVALID, f"{field}: there is no day {text}", field=field
        ) from error


def spend_message(spend: Spend) -> usage_pb2.Spend:
    """Sums."""
    return usage_pb2.Spend(**{name: getattr(spend, name) for name in Spend.__dataclass_fields__})


def spend_line(line: SpendLine) -> usage_pb2.ListSpendResponse.Line:
    """The sums of one line."""
    return usage_pb2.ListSpendResponse.Line(
        session=line.session,
        memory=line.memory,
        day=line.day.isoformat() if line.day else "",
        spend=spend_message(line.spend),
    )


def cost_response(cost: Cost) -> usage_pb2.GetCostResponse:
    """What calls came to."""
    response = usage_pb2.GetCostResponse(
        total=spend_message(cost.total),
        lines=[
            usage_pb2.GetCostResponse.Line(
                memory=line.memory,
                purpose=line.purpose,
                model=line.model,
                spend=spend_message(line.spend),
            )
            for line in cost.lines
        ],
        reading=_log_cost(cost.reading),
    )
    for one in cost.residuals:
        # `class` is a keyword of Python.
        fields = {
            "class": one.residual,
            "calls": one.calls,
            "predicted_cached_tokens": one.predicted_cached_tokens,
            "reported_cached_tokens": one.reported_cached_tokens,
        }
        response.residuals.append(usage_pb2.GetCostResponse.Residual(**fields))  # type: ignore[arg-type]
    if cost.compared is not None:
        response.comparison.CopyFrom(_comparison(cost.compared))
    if cost.accounting is not None:
        response.accounting.CopyFrom(_accounting(cost.accounting))
    return response


def _log_cost(cost: LogCost) -> usage_pb2.LogCost:
    return usage_pb2.LogCost(
        prompts=cost.prompts,
        total_tokens=cost.total_tokens,
        cached_tokens=cost.cached_tokens,
        written_tokens=cost.written_tokens,
        output_tokens=cost.output_tokens,
        cost_index=cost.cost_index,
        cost_micro_usd=cost.cost_micro_usd,
    )


def _comparison(compared: Compared) -> usage_pb2.GetCostResponse.Comparison:
    return usage_pb2.GetCostResponse.Comparison(
        steps=compared.steps,
        all_steps=compared.all_steps,
        from_position=compared.from_position,
        to_position=compared.to_position,
        model=compared.model,
        measured=_log_cost(compared.measured),
        as_kept=_log_cost(compared.as_kept),
        in_place=_log_cost(compared.in_place),
        amendments=_log_cost(compared.amendments),
        adaptive=_log_cost(compared.adaptive),
        truncated=compared.steps < compared.all_steps,
    )


def _accounting(found: Accounting) -> usage_pb2.GetCostResponse.Accounting:
    return usage_pb2.GetCostResponse.Accounting(
        steps=found.steps,
        task_tokens=found.task_tokens,
        system_tokens=found.system_tokens,
        step_tokens=found.step_tokens,
        state_tokens=found.state_tokens,
        period=found.period,
        standard=_loop(found.standard),
        recursive=_loop(found.recursive),
        pcc=_loop(found.pcc),
        standard_ratio=found.standard_ratio,
        recursive_ratio=found.recursive_ratio,
    )


def _loop(loop: Loop) -> usage_pb2.GetCostResponse.Loop:
    return usage_pb2.GetCostResponse.Loop(
        **{name: getattr(loop, name) for name in Loop.__dataclass_fields__}
    )
