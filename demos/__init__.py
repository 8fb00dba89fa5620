"""Demos that are not part of the installed package: run them from the top of the repository."""
