#!/bin/sh
# A flow on YARN in client mode, from the host that has the recovery directory:
#
#     HADOOP_CONF_DIR=/etc/hadoop/conf sh yarn.sh words.py /srv/words/db --trigger 1s
#
# The executors' Python comes with the job, from environment.tar.gz in the current directory. Their hosts need the Python
# that it was made with, under the same path, and nothing else; PySpark comes from Spark itself. To make it, on a host
# like theirs:
#
#     python -m venv env
#     env/bin/pip install apsw pyarrow click msgspec 'pandas<3'
#     env/bin/pip install --no-deps pyspark_recovery-*.whl      # docs/deploying.md says how to make this wheel
#     tar -C env -czf environment.tar.gz .
set -eu
: "${HADOOP_CONF_DIR:?the directory of core-site.xml and yarn-site.xml}"
flow=$1 directory=$2
shift 2
export PYSPARK_PYTHON=./environment/bin/python

exec python -m recovery run "$flow" -r "$directory" --master yarn --serve :7400 \
    --conf spark.submit.deployMode=client \
    --conf spark.yarn.dist.archives=environment.tar.gz#environment \
    --conf spark.executor.instances=4 --conf spark.executor.cores=4 "$@"
