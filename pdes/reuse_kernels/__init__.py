"""Kernels of exact reuse: NVLink domains in cells of their own, quiescent moments, and periods of the whole run."""
