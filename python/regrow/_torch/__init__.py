"""Tensors of PyTorch as leaves, below `regrow.torch`. The program imports torch."""
