"""The family LLaMA, and the layers that it shares with Mistral and Qwen: RMSNorm, rotary positions, grouped keys, gated MLP.

rotary_config.py has what their configurations share, family.py puts the layers together.
"""
