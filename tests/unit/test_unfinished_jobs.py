"""Jobs whose end breaks: they are remembered, so that the next sweep frees them."""

import pytest
from procrastinate.jobs import Job, Status
from procrastinate.testing import InMemoryConnector

from service.dispatch.procrastinate import _Jobs
from service.domain import fail_points
from service.domain.fail_points import FailPoint


@pytest.mark.parametrize("point", [FailPoint.JOB_BEFORE_END, FailPoint.JOB_ENDED])
async def test_a_job_whose_end_breaks_is_swept(point: FailPoint) -> None:
    def act(at: FailPoint) -> None:
        if at is point:
            raise LookupError("a defect")

    jobs = _Jobs(InMemoryConnector())
    wanted = Job(id=None, queue="work", task_name="work", lock="l", queueing_lock="l")
    job = await jobs.defer_job_async(wanted)
    fail_points.act(act)
    try:
        await jobs.finish_job(job, Status.SUCCEEDED, True)
    finally:
        fail_points.act(None)
    assert jobs.unfinished == {job.id}
