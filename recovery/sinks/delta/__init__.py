"""DeltaSink: a Delta table that has each record of the closed epochs once."""
