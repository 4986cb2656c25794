"""Traces of messages between pairs of NPUs, without a model or collectives."""
