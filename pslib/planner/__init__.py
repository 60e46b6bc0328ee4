"""Capacity planner: number of machines, speed and bottlenecks, from measured costs and simulation."""
