"""Opens a checkpoint and loads from it: whole, in parts, or into a template."""
