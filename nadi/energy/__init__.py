"""Energy and cost of a run, computed from a small table of powers and prices that users can replace.

`table.toml` is the default table and gives the source of each number; `table` reads a table, `bill` computes a run's
energy and cost.
"""
