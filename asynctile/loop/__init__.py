"""The engine's event loop in its own thread, and what asyncio lacks there: named locks, background tasks, file work."""
