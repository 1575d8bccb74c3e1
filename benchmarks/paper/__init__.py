"""The PagedAttention paper's evaluation, simulated: `make paper` writes its figures, and its numbers beside ours.

The real engine, scheduler, block pool and decoders run in virtual time: a runner answers at once, and a cost model says
how long each step would have taken. The paper's baselines are modelled beside it; nothing of this is in the product.
"""
