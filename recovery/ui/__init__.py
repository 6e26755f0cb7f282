"""`recovery ui`: pages and JSON that show flows while they run. Reads only."""
