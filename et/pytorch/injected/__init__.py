"""Modules that run inside a training script; they import PyTorch and nothing of Nadi, which the script may lack."""
