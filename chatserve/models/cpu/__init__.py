"""The CPU runner: models of the Llama family in numba, one parallel region a step, weights in 4 or 8 bits."""
