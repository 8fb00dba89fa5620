"""What runs on a worker: sliding kernels, folds, the window-level query."""
