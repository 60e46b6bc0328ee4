"""Skips of tests for what a machine or a build lacks, and the age of its kernels."""
