"""Kernels that decode the bytes of traces into columns, for `et`, which does not depend on a compiler (et/decoder.py).

`wire` and `nodes` are the kernels, which work on bytes only; `compiled` compiles them and provides them to `et`.
"""
