"""How many machines, how fast, what breaks first: a plan from measured coefficients, and its simulation."""
