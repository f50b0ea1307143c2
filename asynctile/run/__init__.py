"""Programs carried out by coroutines, and operations launched one by one."""
