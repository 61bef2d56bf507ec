"""MemPO: search question answering in which an agent keeps only what it writes into memory."""

__version__ = "0.1.0"
