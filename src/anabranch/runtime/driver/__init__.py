"""What the driver knows: the settings of a run, and the state between two epochs."""
