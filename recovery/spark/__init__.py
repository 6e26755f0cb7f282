"""Everything that uses PySpark. Importing this package raises SparkUnavailableError if no supported version is
installed."""

from recovery.spark.jvm.installed import check_installed

check_installed()
