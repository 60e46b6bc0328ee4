"""Kernels of messages: encoding, quantization, splitting by owner, checksums."""
