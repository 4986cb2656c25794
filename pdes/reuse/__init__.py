"""Exact reuse: collectives of an NVLink domain are simulated once, in a world of their own, and then replayed."""
