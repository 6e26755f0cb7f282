"""Files that executors write or read, through the Hadoop client of Spark's JVM.

checkpoint.py  an ordinary checkpoint of Spark there, imported and exported
home.py        the checkpoint of a run there, for the state of Spark's own operators
reports.py     what the tasks of a write report
writing.py     a frame's rows as files, each reported by the task that wrote it
"""
