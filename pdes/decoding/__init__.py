"""Kernels that turn the bytes of files into columns; they know bytes only. Whoever reads files gets them from nadi."""
