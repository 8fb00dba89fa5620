"""Live state: the state of partition-groups on a worker's disk, mapped into memory. It can always be rebuilt."""
