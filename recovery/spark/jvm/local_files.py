"""Local files without a process for each. Hadoop starts `chmod` for every file that it makes if its native library is
missing, as it is in PySpark. Spark's log of a micro-batch alone is a dozen files."""

from __future__ import annotations

from pyspark.sql import SparkSession

from recovery.spark.jvm.java_sources import compiled

OURS = "recovery.LocalFiles"
SPARKS = "org.apache.hadoop.hive.ql.io.ProxyLocalFileSystem"
LOCAL = "file:///"


def install(spark: SparkSession) -> None:
    """Make the JVM of a session that this package made set permissions by a system call (LocalFiles.java).

    Hadoop caches the first file system that it makes for local files, and gives it to all; LocalFiles takes its place.
    Change nothing if Spark's class is another one than the one that LocalFiles extends, or if the native library is
    available.
    """
    jvm = spark._jvm
    assert jvm is not None
    hadoop, place = jvm.org.apache.hadoop, jvm.java.net.URI(LOCAL)
    given = spark.sparkContext._jsc.hadoopConfiguration()
    before = hadoop.fs.FileSystem.get(place, given)
    if before.getClass().getName() != SPARKS or hadoop.io.nativeio.NativeIO.isAvailable():
        return
    with_ours = hadoop.conf.Configuration(given)
    with_ours.setClassLoader(compiled(spark, "jvm/LocalFiles.java"))
    with_ours.set("fs.file.impl", OURS)
    before.close()
    hadoop.fs.FileSystem.get(place, with_ours)
