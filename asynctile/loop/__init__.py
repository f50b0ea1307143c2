"""The event loop of an engine in a thread of its own, and what asyncio lacks there: locks, background tasks, file work."""
