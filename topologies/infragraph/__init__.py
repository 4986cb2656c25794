"""InfraGraph, the description of infrastructure of Keysight: devices of components, instances of devices, and links."""
