"""IcebergSink: an Iceberg table that has each record of the closed epochs once."""
