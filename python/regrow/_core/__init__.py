"""The parts that all packages share: arguments, options, locations, progress, reports."""
