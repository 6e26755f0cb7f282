"""What `recovery ui` serves: pages for people, and JSON for programs, of recovery directories that it only reads."""
