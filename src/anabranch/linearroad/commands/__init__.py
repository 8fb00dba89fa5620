"""The commands `anabranch linearroad ...`."""
