"""Operations on whole checkpoints: list, copy, convert, compare, show, protect, repair, remove."""
