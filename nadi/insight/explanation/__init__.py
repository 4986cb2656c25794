"""Explanation of a run: its critical path, what bounds each piece, and predictions of changes.

`explain` returns the document that `nadi explain` prints.
"""

from nadi.insight.explanation.critical_path import axis_of
from nadi.insight.explanation.document import explain
from nadi.insight.explanation.run_events import CyclicError, senders_of
