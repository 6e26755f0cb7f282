#!/bin/sh
# A flow on YARN, from the host that has the recovery directory. NOT TRIED: no YARN was at hand.
#
# HADOOP_CONF_DIR leads to the cluster. The executors' Python comes with the job:
#     python -m venv env && env/bin/pip install recovery venv-pack && env/bin/venv-pack -p env -o environment.tar.gz
set -eu
: "${HADOOP_CONF_DIR:?the directory of core-site.xml and yarn-site.xml}"
export PYSPARK_PYTHON=./environment/bin/python

exec python -m recovery run flow.py -r /srv/words/db --trigger 1s \
    --master yarn --serve :7400 --py-files helpers.py \
    --conf spark.submit.deployMode=client \
    --conf spark.yarn.dist.archives=environment.tar.gz#environment \
    --conf spark.executor.instances=4 --conf spark.executor.cores=4
