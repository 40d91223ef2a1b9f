"""Saves pytrees and items, in the foreground and in the background."""
