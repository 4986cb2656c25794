"""Kernels that turn the bytes of traces into columns, for `et`, which knows no compiler (et/decoder.py).

`wire` and `nodes`: the kernels, which know bytes only; `compiled`: hands them to `et`, or compiles them before.
"""
