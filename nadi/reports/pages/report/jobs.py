"""The jobs of a run: their times, and what each lost to which others."""

from nadi.insight.runs import Run
from nadi.reports.pages.page import Heading, PageSection, Part, Table, from_terminal
from nadi.reports.text.jobs import jobs_table
from nadi.terminal import amount_text

MAX_JOBS = 1000  # rows of the table
_WHY = {
    "start": "When all its NPUs start.",
    "time": "From its start to its end.",
    "alone": "Time of the job without the others, on the same NPUs.",
    "slow-down": "Time over time alone.",
    "step": "Time of one optimizer step.",
    "MFU": "Model FLOP utilisation: the model's FLOP over the GPUs' peak, causal attention counted half.",
    "shares links with": "Other jobs that use the same links at the same time, with the bytes that these sent there.",
    "digest": "Hash of all that the job did, by its ranks and from its start; equal digests, equal jobs.",
}


def section(run: Run) -> PageSection | None:
    """Return the section about jobs; None in a run without [[jobs]]."""
    jobs = run.summary.get("jobs")
    if not jobs:
        return None
    parts: list[Part] = [from_terminal(jobs_table(jobs, MAX_JOBS), why=_WHY)]
    shared = [
        [
            job["name"],
            each["job"],
            f"{each['links']:,}",
            amount_text(each["bytes"]),
            amount_text(each["other_bytes"]),
            each["link_name"],
        ]
        for job in jobs
        for each in job["shares"]
    ]
    if shared:
        headings = [
            Heading("job", "", is_text=True),
            Heading("other job", "A job that uses the same links at the same time.", is_text=True),
            Heading("links", "Number of links on which each of both sent 1 % of the bytes or more."),
            Heading("own bytes", "Bytes that the job sent over these links."),
            Heading("other bytes", "Bytes that the other job sent over them: what the job waits for."),
            Heading("most at", "Link on which the smaller of both sent most.", is_text=True),
        ]
        parts.append(Table("links that jobs share", headings, shared, ""))
    return PageSection("jobs", "Jobs", "Jobs that share the fabric, and what each lost to the others.", parts)
