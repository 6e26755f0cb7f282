"""The server of `recovery ui`: who gets in, where it listens, and what each answer carries."""
