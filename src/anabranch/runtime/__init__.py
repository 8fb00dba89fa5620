"""The epoch runtime: durable files, the ledger of decisions, the epoch store, live state, metrics."""
