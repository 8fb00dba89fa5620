"""Slow and obvious references, one per mechanism, that the fast paths are compared with."""
