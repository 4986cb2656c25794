"""Choosing a few traces that stand for many.

`features(table)` says in numbers what a trace is like, `choose(rows, many, k)` which k of all stand for the others, and
`coverage(choice)` how well. docs/explanation/synthetic-traces.md says what the features are and how they are weighed.
"""

from et.selection.choosing import TraceSelection, choose
from et.selection.coverage import Coverage, coverage
from et.selection.features import FAMILIES, FEATURES, features

__all__ = ["FAMILIES", "FEATURES", "Coverage", "TraceSelection", "choose", "coverage", "features"]
