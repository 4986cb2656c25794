"""Checkpoints: the state of a run, saved where all workers have stopped before the same window, and restored."""
