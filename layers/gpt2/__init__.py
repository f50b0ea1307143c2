"""The family GPT-2: its configuration and the layers that only it has. family.py puts them together."""
