"""Operators: what runs on a worker."""
