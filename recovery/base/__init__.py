"""Used by every room: ids, clock, crash points, and the handling of untrusted text and names."""
