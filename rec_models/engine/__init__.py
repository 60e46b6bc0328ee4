"""Engine of a step: reverse-mode differentiation, gradients of rows, matrix products, reused arrays."""
