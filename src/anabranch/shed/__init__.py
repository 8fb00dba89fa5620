"""Load shedding that keeps every answer true: which windows are dropped, and what may be left out because of it."""
