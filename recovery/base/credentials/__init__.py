"""By what processes on several hosts know each other: certificates, the token, the task key."""
