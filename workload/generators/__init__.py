"""Generators of traces: training and serving of a model, messages between pairs; models and memory."""
