"""NCCL between nodes: tiles go from the RAM of one node to the RAM of another through their GPUs."""

from asynctile.nccl.nccl_exchange import NcclExchange

__all__ = ["NcclExchange"]
