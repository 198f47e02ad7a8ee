"""The messages of recurve.v1, as generate.sh made them from proto/recurve/v1."""
