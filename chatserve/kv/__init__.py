"""KV memory as numbers: block pool, reference counts, block tables (PagedAttention, section 4); no tensors."""

from chatserve.kv.block_pool import BlockPool, OutOfBlocksError
from chatserve.kv.block_table import BlockTable
from chatserve.kv.integrity import IntegrityError, check_integrity
from chatserve.kv.prefix_index import IndexedBlock, PrefixIndex
from chatserve.kv.swap_space import SwappedTable, SwapSpace, distinct_blocks
from chatserve.kv.table_matrix import TableMatrix

__all__ = [
    "BlockPool",
    "BlockTable",
    "IndexedBlock",
    "IntegrityError",
    "OutOfBlocksError",
    "PrefixIndex",
    "SwapSpace",
    "SwappedTable",
    "TableMatrix",
    "check_integrity",
    "distinct_blocks",
]
