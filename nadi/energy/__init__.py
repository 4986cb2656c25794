"""Joules and dollars of a run, from a small table of powers and prices that users replace.

`table.toml` is the table that stands here, each number with its source; `table` reads one, `bill` works out a run's.
"""
