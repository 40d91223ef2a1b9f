"""What the other packages share: arguments, options, locations, progress, reports. No pytrees."""
