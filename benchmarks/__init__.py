"""Benchmarks: `python -m benchmarks NAME`, run from the repository's root; see benchmarks/README.md."""
