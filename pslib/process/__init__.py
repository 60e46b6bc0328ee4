"""This process and its machine: cores, BLAS threads, file limits, shutdown, the excepthook."""
