"""Infrastructure of trace checks: their input, their findings, and fixes. The checks themselves are in `et.checks`."""

from nadi.et.checking.check import AS_WRITTEN, Sources, open_trace, shifts_of
from nadi.et.checking.finding import SEVERITIES, WARNING, CheckReport, Example, TraceFix, changed_messages, safe_changes
