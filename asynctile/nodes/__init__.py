"""Nodes: the processes that train one model together, and the exchange of tiles between them."""

from asynctile.nodes.tcp_exchange import TcpExchange

__all__ = ["TcpExchange"]
