"""What runs in Spark's tasks, and what the tasks report to the driver."""
