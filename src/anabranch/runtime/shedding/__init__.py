"""Load shedding: what is decided before an epoch, and how rows and results are dropped in it."""
