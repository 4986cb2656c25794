"""What the times and counts of a run mean: where time went, in what order, and what to be careful about."""
