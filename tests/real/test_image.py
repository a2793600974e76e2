"""The entry point of the image starts what Spark on Kubernetes wants: the image itself is built nowhere here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

ENTRY_POINT = Path(__file__).resolve().parents[2] / "deploy" / "entrypoint.sh"
SPARK_HOME = Path(pyspark.__file__).parent
POD = {
    "SPARK_HOME": str(SPARK_HOME),
    "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@rides-driver-svc.spark.svc:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.1.2.3",
    "SPARK_EXECUTOR_POD_NAME": "rides-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078",
    "SPARK_JAVA_OPT_1": "-Da=with a space",
}


def started(*arguments: object, **variables: str) -> str:
    """Return what the entry point prints in an environment that Spark makes for a pod."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    command = ["bash", str(ENTRY_POINT), *map(str, arguments)]
    done = subprocess.run(command, env=environment | POD | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def test_a_driver_is_a_submitted_program(tmp_path: Path) -> None:
    """It has Spark's settings, the address of its pod among them, and its arguments."""
    program = tmp_path / "program.py"
    program.write_text("""
import sys
from pyspark import SparkConf, SparkContext
SparkContext._ensure_initialized()
conf = SparkConf()
settings = ("spark.app.name", "spark.driver.bindAddress", "spark.submit.deployMode")
print(*map(conf.get, settings), sys.argv[1:])
""")
    properties = tmp_path / "spark.properties"
    properties.write_text("spark.app.name rides\nspark.master local[1]\n")
    shown = started(
        "driver", "--properties-file", properties, "--class", "org.apache.spark.deploy.PythonRunner",
        f"local://{program}", "/data", "a b", SPARK_CONF_DIR=str(tmp_path), PYSPARK_PYTHON=sys.executable,
    )  # fmt: skip
    assert shown.splitlines()[-1] == "rides 127.0.0.1 client ['/data', 'a b']"


@pytest.mark.parametrize("options", [0, 3])
def test_an_executor_is_the_java_that_spark_describes(tmp_path: Path, options: int) -> None:
    """A script stands for Java: a real one would look for the pods of a cluster."""
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    java.chmod(0o755)
    numbered = {"SPARK_JAVA_OPT_2": "-Dlast=1"} if options else {}
    without = [] if options else ["-u", "SPARK_JAVA_OPT_0"]
    environment = {**os.environ, **POD, **numbered, "JAVA_HOME": str(tmp_path)}
    command = ["env", *without, "bash", str(ENTRY_POINT), "executor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found[:options] == ["-Dspark.driver.port=7078", "-Da=with a space", "-Dlast=1"][:options]
    assert found[options : options + 4] == ["-Xms1024m", "-Xmx1024m", "-cp", f"/opt/spark/conf:{SPARK_HOME}/jars/*"]
    backend, *described = found[options + 4 :]
    assert backend == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    assert dict(zip(described[::2], described[1::2], strict=True)) == {
        "--driver-url": POD["SPARK_DRIVER_URL"],
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.1.2.3",
        "--resourceProfileId": "0",
        "--podName": "rides-exec-3",
    }


def test_the_class_of_executors_is_in_the_jars_of_pyspark() -> None:
    (jar,) = (SPARK_HOME / "jars").glob("spark-kubernetes_*.jar")
    assert b"org/apache/spark/scheduler/cluster/k8s/KubernetesExecutorBackend.class" in jar.read_bytes()


def test_another_command_runs_as_it_is() -> None:
    assert started("printf", "%s|", "a b", "c") == "a b|c|"
