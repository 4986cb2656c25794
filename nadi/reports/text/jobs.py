"""The table of the jobs of a run, for the terminal and for pages."""

from collections.abc import Sequence
from typing import Any

from nadi.terminal import FittedTable, amount_text, name_column, text_column, time_text

MAX_JOBS = 20
_SHOWN = 2  # other jobs named in a row


def jobs_table(jobs: Sequence[dict[str, Any]], max_rows: int = MAX_JOBS) -> FittedTable:
    """Return a row per job (`jobs` of summary.json): NPUs, start, time, throughput, and what it lost to which jobs.

    Args:
        jobs: Table `jobs` of summary.json.
        max_rows: Maximum number of rows of the table.
    """
    has_alone = any("slowdown" in job for job in jobs)
    has_mfu = any("mfu" in job["step"] for job in jobs)
    has_shares = any(job["shares"] for job in jobs)
    columns: list[Any] = [name_column("job"), "NPUs", ("start", 5), "time"]
    columns += ["alone", "slow-down"] if has_alone else []
    columns += [("step", 3), ("MFU", 2)] if has_mfu else []
    columns += [text_column("shares links with", 4)] if has_shares else []
    table = FittedTable("jobs", *columns, name_column("digest", 6), full_output_option="--out")
    for job in jobs[:max_rows]:
        cells = [job["name"], f"{job['npus']:,}", time_text(job["start_ps"]), time_text(job["time_ps"])]
        if has_alone:
            cells += [
                time_text(job["alone_ps"]) if "alone_ps" in job else "-",
                f"{job['slowdown']:.3f}" if "slowdown" in job else "-",
            ]
        if has_mfu:
            of_step = job["step"]
            cells += [
                time_text(of_step["time_ps"]) if "time_ps" in of_step else "-",
                f"{of_step['mfu']:.1%}" if "mfu" in of_step else "-",
            ]
        cells += [shares_text(job["shares"])] if has_shares else []
        table.add_row(*cells, job["digest"][:12])
    if len(jobs) > max_rows:
        table.notes.append(f"and {len(jobs) - max_rows:,} more in summary.json")
    return table


def shares_text(shares: Sequence[dict[str, Any]]) -> str:
    """Return the jobs with which a job shares links: "b (8 links, 1.2 GB of b)"."""
    texts = [f"{each['job']} ({each['links']:,} links, {amount_text(each['other_bytes'])})" for each in shares[:_SHOWN]]
    more = [f"{len(shares) - _SHOWN} more"] if len(shares) > _SHOWN else []
    return ", ".join(texts + more) or "-"
