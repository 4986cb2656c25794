"""Fluid flows that share links max-min fairly: paths, rates, and the heap of their ends."""
