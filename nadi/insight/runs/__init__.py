"""Finished runs, read from their folders: the input of reports, timelines, explanations and comparisons."""

from nadi.insight.runs.run import Run
