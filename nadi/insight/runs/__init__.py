"""Finished runs, read back from their folders: what reports, timelines, explanations and comparisons start from."""

from nadi.insight.runs.run import Run

__all__ = ["Run"]
