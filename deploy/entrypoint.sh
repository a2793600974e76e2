#!/usr/bin/env bash
# What a pod of Spark on Kubernetes starts: "driver ARGUMENTS" of spark-submit, "executor", or any other command.
# Spark describes the pod in variables, as its own image expects them.
set -euo pipefail

case "${1:-}" in
    driver)
        shift
        exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
            --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
        ;;
    executor)
        # Options of Java come as SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...; their order matters.
        options=()
        for ((number = 0; ; number++)); do
            variable="SPARK_JAVA_OPT_$number"
            [ -n "${!variable+set}" ] || break
            options+=("${!variable}")
        done
        classes="${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*"
        exec "$JAVA_HOME/bin/java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
            -cp "$classes" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
            --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
            --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
            --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
        ;;
    *)
        exec "$@"
        ;;
esac
