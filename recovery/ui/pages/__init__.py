"""The pages of `recovery ui`: views of facts. A page computes nothing; it draws."""
