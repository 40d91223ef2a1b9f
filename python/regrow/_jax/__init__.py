"""Loads onto the devices of JAX. The program imports JAX; these modules do not."""
