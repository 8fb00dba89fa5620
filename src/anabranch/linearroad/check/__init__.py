"""Whether answers are right: an independent reference in plain SQL, and the comparison with it."""
