"""Kernels that turn the bytes of files into columns; they know bytes only, and whoever reads files takes them from nadi."""
