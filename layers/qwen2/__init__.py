"""The family Qwen2: LLaMA with biases of queries, keys and values. Sliding windows are not computed."""
