"""What is measured against each other. Each module runs in its own virtual environment, so it imports no other."""
