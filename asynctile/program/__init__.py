"""What a step is before it runs: operations on tiles, in order. Pure: no asyncio, no bytes."""
