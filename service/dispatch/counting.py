"""How the queue is counted, by its workers and by a checkup."""

# The columns, of a job j and the event e of its queueing: `queued`, `running`, and the age in
# seconds of the oldest that waits.
COUNTS = """
    count(*) FILTER (WHERE j.status = 'todo') AS queued,
    count(*) FILTER (WHERE j.status = 'doing') AS running,
    coalesce(extract(epoch FROM now() - min(e.at) FILTER (WHERE j.status = 'todo')), 0)::float8
        AS oldest
"""
OF_JOBS = """
FROM procrastinate_jobs j
LEFT JOIN procrastinate_events e ON e.job_id = j.id AND e.type = 'deferred'
"""
