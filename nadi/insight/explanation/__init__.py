"""Explanation of a run's duration: its critical path, what bounds each piece, and which changes would shorten it."""
