"""Rows of `cc` as the congestion control of a test sees them."""

import importlib

import numpy as np


def own_rows(cc, name):
    """`cc` with the words of the control `name`."""
    kind = getattr(importlib.import_module(f"nadi.pdes.nic.congestion.{name}"), f"{name.capitalize()}State")
    return cc.view(np.ndarray).view(kind.dtype).view(np.recarray)


def bare(cc):
    """int64[rows, words]: the same memory without names."""
    return cc.view(np.ndarray).view(np.int64).reshape(len(cc), -1)
