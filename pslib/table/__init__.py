"""Table definitions: parts, optimizers, initializers, policies, wire types, partition map."""
