"""The epoch runtime: what runs a query started with `start()`, on the driver and on the workers."""
