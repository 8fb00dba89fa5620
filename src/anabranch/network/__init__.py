"""The query a user wrote, and its checks."""
