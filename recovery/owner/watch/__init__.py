"""What operators see of an owner's service, and what they renew: facts, log, credentials."""
