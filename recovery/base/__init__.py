"""What every room uses: ids, clock, crash points, and how text and names of others are treated."""
