"""Trace generators for training, serving and point-to-point messages, with the models and the memory estimates."""
