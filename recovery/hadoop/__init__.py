"""Files that executors write, through the Hadoop client of Spark's JVM.

files.py    the files of one of Hadoop's file systems: hdfs://, s3a://, abfs://, gs:// …
writing.py  a frame's rows as files, each reported by the task that wrote it
"""
