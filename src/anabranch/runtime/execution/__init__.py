"""How each kind of operator runs in an epoch."""
