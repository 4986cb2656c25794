"""Studies of several runs: the planner, sweeps of a run file, sweeps of a collective, benchmarks, and replays."""
