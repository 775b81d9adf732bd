#!/bin/bash
# Starts one part of a cluster, or any other command:
#   secret | master | worker MASTER [OPTION…] | driver OPTION… | executor | COMMAND [ARGUMENT…]
# `driver` and `executor` are what Spark asks of an image on Kubernetes. SPARK_DEFAULTS may hold settings of Spark, one a
# line, which come before those of conf/spark/standalone.conf.
set -euo pipefail

secret=${DPAGG_SECRET_FILE:-/secret/spark}

# Spark reads the secret of a standalone cluster from its settings. They are written for this container, where /tmp is in
# memory, readable by its user only: the secret is in no image, command line or `docker inspect`.
if [ -z "${SPARK_CONF_DIR:-}" ]; then
  SPARK_CONF_DIR=$(mktemp -d /tmp/spark-conf.XXXXXX)
  export SPARK_CONF_DIR
  (
    umask 077
    cp "$(dirname "$0")/../conf/spark/standalone.conf" "$SPARK_CONF_DIR/spark-defaults.conf"
    {
      # The last line of a key counts.
      printf '\n%s\n' "${SPARK_DEFAULTS:-}"
      if [ -r "$secret" ]; then printf 'spark.authenticate.secret %s\n' "$(cat "$secret")"; fi
      # Executors find a driver by its address: the name of a container for one job is known to nobody else.
      read -r address _ <<< "$(hostname -i 2> /dev/null)"
      if [ -n "$address" ]; then printf 'spark.driver.host %s\n' "$address"; fi
    } >> "$SPARK_CONF_DIR/spark-defaults.conf"
  )
fi

case ${1:-} in
  secret) # made once, for all parts of this cluster
    if [ ! -s "$secret" ]; then
      (umask 077 && python3 -c 'import secrets; print(secrets.token_hex(32))' > "$secret.new")
      mv "$secret.new" "$secret"
    fi
    ;;
  master)
    shift
    exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master \
      --host "$(hostname)" --port 7077 --webui-port 8080 "$@"
    ;;
  worker)
    shift
    exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker \
      --host "$(hostname)" --port 7078 --webui-port 8081 --work-dir /scratch/work "$@"
    ;;
  driver)
    shift
    exec spark-submit --deploy-mode client --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
  executor)
    options=()
    number=0
    while name=SPARK_JAVA_OPT_$number && [ -n "${!name+set}" ]; do
      options+=("${!name}")
      number=$((number + 1))
    done
    exec "$JAVA_HOME/bin/java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*:${SPARK_DIST_CLASSPATH:-}" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  *)
    exec "$@"
    ;;
esac
