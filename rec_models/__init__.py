"""Models that read like their papers, and the layers they are made of."""
