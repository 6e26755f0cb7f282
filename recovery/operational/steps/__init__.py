"""The state of the steps of flows: reading, editing and comparing it, and how it came about."""
