"""The one place that knows Numba: its compiler with our options, records and primitives as it compiles them."""
