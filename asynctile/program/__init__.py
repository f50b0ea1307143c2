"""What a step is before it runs: operations on handles, in order. Pure: no asyncio, no bytes."""
