"""Commands that look at one run, or end it."""
