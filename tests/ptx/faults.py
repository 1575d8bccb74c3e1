"""`KernelFault`: a kernel did what a GPU would punish, or might not notice."""

from __future__ import annotations


class KernelFault(Exception):
    """Out of bounds, misaligned, uninitialised, racing or divergent; the message says what and where."""
