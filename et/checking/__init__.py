"""Infrastructure of trace checks: their input, their findings, and fixes. The checks themselves are in `et.checks`."""

from nadi.et.checking.check import open_trace
from nadi.et.checking.finding import SEVERITIES, WARNING, CheckReport, Example
from nadi.et.checking.fixing import TraceFix, changed_messages, safe_changes
from nadi.et.checking.sources import AS_WRITTEN, Sources, shifts_of
