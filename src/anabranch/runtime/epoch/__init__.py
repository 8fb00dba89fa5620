"""One epoch: what its operators read, the order in which they run, and what becomes of the results."""
