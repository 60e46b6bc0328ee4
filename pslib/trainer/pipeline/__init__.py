"""Pipeline of a trainer: prefetch rows, compute, push gradients."""
