"""Runs a job part by part, in this process, in several, or on a cluster, and keeps what is finished.

In: a job (a picklable function of one part) and its parts (ranges of rows, or files). Out: the result of each part, in
order. Parts depend on the data and the options only, so the results are the same for every number of workers. A part
that writes files puts them into the `JobFolder`, whose name is made of the fingerprint of the job: a run that was
killed is continued by the next run of the same job.

- `runner`: cuts rows into parts, and runs the parts through an executor of `workers`, with a progress bar
- `job_folder`: the finished parts of a job, next to its target, until they are published
"""

from shardex.lazy_door import TYPES, import_later

__all__ = [
    "Commit",
    "FinishedPart",
    "JobFolder",
    "LeftOut",
    "Part",
    "continue_parts",
    "cut_rows",
    "discard_outdated",
    "job_names",
    "record_path",
    "rows_per_part",
    "run_parts",
]

if TYPES:
    from shardex.jobs.job_folder import (
        Commit,
        FinishedPart,
        JobFolder,
        LeftOut,
        discard_outdated,
        job_names,
        record_path,
    )
    from shardex.jobs.runner import Part, continue_parts, cut_rows, rows_per_part, run_parts
else:
    import_later(
        __name__,
        {
            "job_folder": "Commit FinishedPart JobFolder LeftOut discard_outdated job_names record_path",
            "runner": "continue_parts run_parts Part cut_rows rows_per_part",
        },
    )
