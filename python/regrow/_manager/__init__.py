"""A manager of steps: `regrow.Manager` and its parts."""
