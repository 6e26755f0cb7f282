#!/bin/bash
# The entry point of the image of kubernetes.yaml and kubernetes-owners.yaml. Spark gives the container of an executor
# the argument `executor`, no command, and all else as environment variables; the packages of PySpark have no script
# that starts an executor from these. Whatever else the container is given is run.
set -eu
[ "${1:-}" = executor ] || exec "$@"

spark=$(python3 -c 'import pyspark; print(pyspark.__path__[0])')
options=()
for ((n = 0; ; n++)); do
    name=SPARK_JAVA_OPT_$n
    [ -n "${!name+given}" ] || break
    options+=("${!name}")
done
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
exec "$java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:-$spark/conf}:${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$spark/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
