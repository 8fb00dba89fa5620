"""How data comes in and goes out: Arrow blocks, recorded files as streams, sinks."""
