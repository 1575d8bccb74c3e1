"""Ours against other engines, side by side on one machine: ``python -m benchmarks.peers --help``."""
