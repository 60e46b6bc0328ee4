"""What a table is made of: parts, optimizers, first values, policies, types on the wire, owners of keys."""
