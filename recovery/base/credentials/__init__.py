"""Credentials by which processes on several hosts recognise each other: certificates, the token, the task key."""
