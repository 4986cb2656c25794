"""What PyTorch records of a training run, host execution traces and Kineto traces, and Chakra traces made of it."""
