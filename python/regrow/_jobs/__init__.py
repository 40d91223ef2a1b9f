"""Several processes that save and load together, and how they exchange messages."""
