"""What is in deploy/ is well formed, and its parts name the same things. No cluster runs here: nothing was deployed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from yamllint import linter
from yamllint.config import YamlLintConfig

import headgate
from headgate.graph.query_options import QUERY_OPTION_SPECS

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
RULES = "{extends: default, rules: {line-length: {max: 120}, document-start: disable, braces: {max-spaces-inside: 0}}}"


def fields(names: str) -> set[str]:
    """Return the names in a text."""
    return set(names.split())


# The fields of a SparkApplication: the custom resource definition v1beta2 of kubeflow/spark-operator 2.5.
SPEC = fields(
    "arguments batchScheduler batchSchedulerOptions deps driver driverIngressOptions driverPodDisruptionBudget "
    "dynamicAllocation executor failureRetries hadoopConf hadoopConfigMap image imagePullPolicy imagePullSecrets "
    "mainApplicationFile mainClass memoryOverheadFactor mode monitoring nodeSelector proxyUser pythonVersion "
    "restartPolicy retryInterval sparkConf sparkConfigMap sparkUIOptions sparkVersion suspend timeToLiveSeconds type "
    "volumes"
)
REQUIRED = {"driver", "executor", "mainApplicationFile", "sparkVersion", "type"}
POD = fields(
    "affinity annotations configMaps coreLimit coreRequest cores dnsConfig env envFrom envSecretKeyRefs envVars gpu "
    "hostAliases hostNetwork image initContainers javaOptions labels lifecycle memory memoryLimit memoryOverhead "
    "nodeSelector podSecurityContext ports priorityClassName schedulerName secrets securityContext serviceAccount "
    "shareProcessNamespace sidecars template terminationGracePeriodSeconds tolerations volumeMounts"
)
DRIVER = POD | {"kubernetesMaster", "podName", "serviceAnnotations", "serviceLabels"}
EXECUTOR = POD | {"deleteOnTermination", "instances"}
RESTART = {
    "type", "onFailureRetries", "onFailureRetryInterval", "onSubmissionFailureRetries",
    "onSubmissionFailureRetryInterval",
}  # fmt: skip


def documents(kind: str | None = None) -> list[dict[str, Any]]:
    """Return all objects of the manifests, or those of a kind."""
    found = [each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text())]
    return [each for each in found if kind in (None, each["kind"])]


@pytest.fixture(scope="module")
def application() -> dict[str, Any]:
    """Return the specification of the SparkApplication."""
    (found,) = documents("SparkApplication")
    spec: dict[str, Any] = found["spec"]
    return spec


@pytest.mark.parametrize("path", [*MANIFESTS, ROOT / "mkdocs.yml"], ids=lambda path: path.name)
def test_yaml_is_well_formed(path: Path) -> None:
    assert [str(problem) for problem in linter.run(path.read_text(), YamlLintConfig(RULES))] == []


def test_kubernetes_knows_every_field_of_its_own_kinds() -> None:
    own = [each for each in documents() if each["kind"] != "SparkApplication"]
    kinds = ["NetworkPolicy", "NetworkPolicy", "PersistentVolumeClaim", "Role", "RoleBinding", "Service"]
    assert sorted(each["kind"] for each in own) == [*kinds, "ServiceAccount"]
    for each in own:
        kubernetes_validate.validate(each, "1.37", strict=True)


def test_the_operator_knows_every_field(application: dict[str, Any]) -> None:
    (found,) = documents("SparkApplication")
    assert (found["apiVersion"], found.keys()) == (
        "sparkoperator.k8s.io/v1beta2", {"apiVersion", "kind", "metadata", "spec"},
    )  # fmt: skip
    assert application.keys() >= REQUIRED
    assert application.keys() <= SPEC
    assert application["driver"].keys() <= DRIVER
    assert application["executor"].keys() <= EXECUTOR
    assert application["restartPolicy"].keys() <= RESTART
    assert (application["type"], application["mode"]) == ("Python", "cluster")
    assert all(isinstance(value, str) for value in application["sparkConf"].values()), "the operator takes texts only"


@pytest.mark.parametrize("of", ["driver", "executor"])
def test_the_parts_of_pods_are_what_kubernetes_knows(application: dict[str, Any], of: str) -> None:
    part = application[of]
    container = {"name": "spark", "image": application["image"], "securityContext": part["securityContext"]}
    container |= {name: part[name] for name in ("envFrom", "volumeMounts", "ports") if name in part}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "spark", "labels": part["labels"]},
        "spec": {
            "containers": [container],
            "securityContext": part["podSecurityContext"],
            "volumes": application["volumes"],
        },
    }
    kubernetes_validate.validate(pod, "1.37", strict=True)


def test_names_and_ports_agree(application: dict[str, Any]) -> None:
    assert {each["metadata"]["namespace"] for each in documents()} == {"spark"}
    settings, driver = application["sparkConf"], application["driver"]
    ports = {port["name"]: port["containerPort"] for port in driver["ports"]}
    (service,) = documents("Service")
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    assert {name: int(settings[f"spark.headgate.{name}.port"]) for name in ports} == ports
    assert settings["spark.headgate.transport.host"] == f"{service['metadata']['name']}.spark.svc"
    spark_s = {"spark-role": "driver"}
    assert service["spec"]["selector"] == driver["labels"] | spark_s
    everybody, dashboard = documents("NetworkPolicy")
    labels = everybody["spec"]["podSelector"]["matchLabels"]
    assert labels == driver["labels"] == application["executor"]["labels"]
    assert dashboard["spec"]["podSelector"]["matchLabels"] == labels | spark_s
    assert dashboard["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": ports["dashboard"]}]
    (claim,), (account,) = documents("PersistentVolumeClaim"), documents("ServiceAccount")
    (volume,) = application["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert driver["serviceAccount"] == account["metadata"]["name"]
    (mount,) = driver["volumeMounts"]
    assert [mount["mountPath"]] == application["arguments"]


def test_the_settings_are_options_of_queries(application: dict[str, Any]) -> None:
    set_here = {name.removeprefix("spark.headgate.") for name in application["sparkConf"] if "headgate" in name}
    assert set_here <= {spec.name for spec in QUERY_OPTION_SPECS}


def test_versions_and_programs_agree(application: dict[str, Any]) -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert application["sparkVersion"] == pins["pyspark"]
    assert application["image"].partition(":")[2] == headgate.__version__
    assert set(re.findall(r"headgate:(\S+)", dockerfile)) == {headgate.__version__}
    program = Path(application["mainApplicationFile"].removeprefix("local://"))
    assert f"WORKDIR {program.parent}\n" in dockerfile
    compile((DEPLOY / "kubernetes" / program.name).read_text(), program.name, "exec")


def test_the_dockerfile_has_no_findings() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_image_has_one_python_and_what_is_copied_exists() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    images = re.findall(r"^FROM python:(3\.\d+)-slim-bookworm", dockerfile, re.MULTILINE)
    assert len(images) == 2 and len(set(images)) == 1
    assert f"/lib/python{images[0]}/site-packages/pyspark" in dockerfile
    copied = [path for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile, re.MULTILINE) for path in line.split()]
    sources = {path for path in copied if not path.startswith(("/", "-"))}
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {f"!{path}" for path in sources} == {line for line in allowed if line.startswith("!")}
    assert all((ROOT / path).exists() for path in sources if "*" not in path)
