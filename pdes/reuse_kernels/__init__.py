"""Kernels of exact reuse: NVLink domains in cells of their own, quiet moments, and periods of the whole run."""
