"""Selection of a few traces that represent many.

`features(table)` describes a trace in numbers, `choose(rows, counts, k)` selects k representative traces, and
`coverage(choice)` measures how well they represent all. docs/explanation/synthetic-traces.md describes them.
"""

from nadi.et.selection.choosing import FAMILIES, FEATURES, Coverage, TraceSelection, choose, coverage, features
