"""The family Mistral: LLaMA without biases. Sliding windows are not computed."""
