"""Physical KV memory as numbers: block pool, reference counts, block tables. Knows no tensors (PagedAttention, sections 4.2 to 4.4)."""

from chatserve.kv.block_pool import BlockPool, OutOfBlocksError
from chatserve.kv.block_table import BlockTable
from chatserve.kv.integrity import IntegrityError, check_integrity

__all__ = ["BlockPool", "BlockTable", "IntegrityError", "OutOfBlocksError", "check_integrity"]
