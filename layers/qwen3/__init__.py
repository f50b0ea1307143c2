"""The family Qwen3: LLaMA with norms of queries and keys. Sliding windows are not computed."""
