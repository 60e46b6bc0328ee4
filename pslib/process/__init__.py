"""Process and machine services: cores, BLAS threads, file limits, shutdown, the excepthook."""
