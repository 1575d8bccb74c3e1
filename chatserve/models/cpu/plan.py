"""`PLAN` and `MATRIX`: what the threads of a step are told, as structs of addresses, strides in bytes and counts."""

from __future__ import annotations

import numpy as np

PLAN = np.dtype(
    [
        *[
            (name, np.int64)
            for name in (
                "num_threads", "num_layers", "num_rows", "num_wanted", "num_tiles", "num_pieces",
                "hidden_size", "num_hidden_groups", "num_heads", "num_kv_heads", "head_dim", "block_size", "item_bytes",
                "hidden", "hidden_stride", "qkv", "qkv_stride", "mixed", "mixed_stride", "inner", "inner_stride",
                "logits", "logits_stride", "prepared", "prepared_bytes",
                "scratch", "scratch_bytes", "partials", "partial_bytes", "counters", "zeros", "multiply", "attend",
                "pages", "layer_bytes", "values_offset", "block_bytes",
            )
        ],
        ("epsilon", np.float32),
        ("scaling", np.float32),
    ],
    align=True,
)  # fmt: skip
"""One step.

- rows: the tokens of the step; wanted: the rows whose logits are wanted; tiles and pieces: the work of attention.
- hidden, qkv, mixed, inner, logits: float32 activations, a row each `.._stride` bytes: the residual stream; query, key
  and value heads; what attention gave; gate and up joined; logits.
- prepared: blocks of rows in the form in which the next matrix wants them (see `products`); a buffer a thread,
  `prepared_bytes` apart. The first one is shared unless rows are few.
- scratch: a buffer a thread; partials: what attention found in each piece, by head.
- item_bytes: of a number in the pages; pages: keys of block 0 of layer 0; the values of a layer lie `values_offset`
  behind its keys, the next layer `layer_bytes`.
- counters: tickets and finished items of each stage; zeros: a few zero numbers;
  multiply, attend: the functions of `entry_points`.
"""

MATRIX = np.dtype(
    [(name, np.int64) for name in ("kind", "form", "weights", "bias", "num_tiles", "num_groups", "at_once")], align=True
)
"""A tiled matrix; `bias` is the address of float32[8 num_tiles], 0 when it has none; `at_once` see `products`."""

QKV, OUT, GATE_UP, DOWN, PER_LAYER = 0, 1, 2, 3, 4
"""Place of a matrix within its layer; head and embedding follow the last layer."""
