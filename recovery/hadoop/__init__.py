"""Files that executors write or read, through the Hadoop client of Spark's JVM.

files.py    the files of one of Hadoop's file systems: hdfs://, s3a://, abfs://, gs:// …
home.py     the checkpoint of a run there, for the state of Spark's own operators
writing.py  a frame's rows as files, each reported by the task that wrote it
"""
