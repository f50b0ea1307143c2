"""What moves when, decided in program order and never by the clock. Pure: no asyncio, no bytes."""
