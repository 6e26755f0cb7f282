"""The manifests and commands of examples, of which default tests run none: what they call exists, with every
option."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from recovery.cli import main

yaml = pytest.importorskip("yaml", reason="moto brings it")

ROOT = Path(__file__).parents[1]
KUBERNETES = ["cluster/kubernetes.yaml", "cluster/kubernetes-owners.yaml", "deploy/words.yaml"]
VARIABLES = set(re.findall(r"RECOVERY_[A-Z_]+", (ROOT / "docs" / "cli.md").read_text()))


def documents(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "examples" / file).read_text()))


def check_command(words: list[str]) -> None:
    """Raises click's error for an option or a value that there is not."""
    context = click.Context(main)
    name, *arguments = words
    command = main.get_command(context, name)
    assert command is not None, words
    # Its files are on other hosts.
    for parameter in command.params:
        if isinstance(parameter.type, click.Path):
            parameter.type.exists = False
    command.make_context(name, arguments, parent=context)


def recovery_commands(words: list[str]) -> list[list[str]]:
    """What is called by a container's command: `python -m recovery …` by itself, or in a line of a shell."""
    if words[:2] == ["sh", "-c"]:
        return [shlex.split(each) for each in re.findall(r"python -m recovery ([^|&;]+)", words[2])]
    return [words[3:]] if words[:3] == ["python", "-m", "recovery"] else []


@pytest.mark.parametrize("file", KUBERNETES)
def test_what_kubernetes_calls_exists(file):
    """Every command with its options, every variable, and every volume that a container mounts."""
    commands = 0
    for document in documents(file):
        if document["kind"] != "StatefulSet":
            continue
        pod = document["spec"]["template"]["spec"]
        volumes = {each["metadata"]["name"] for each in document["spec"].get("volumeClaimTemplates", ())}
        volumes |= {each["name"] for each in pod.get("volumes", ())}
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            for words in recovery_commands([*container.get("command", ()), *container.get("args", ())]):
                check_command(words)
                commands += 1
            assert {each["name"] for each in container.get("env", ())} <= VARIABLES
            assert {each["name"] for each in container.get("volumeMounts", ())} <= volumes
    assert commands


@pytest.mark.parametrize("file", [each for each in KUBERNETES if each.startswith("cluster/")])
def test_ports_and_names_of_a_cluster_agree(file):
    """Services have the ports that processes listen at, and owners the names that the driver calls."""
    text = (ROOT / "examples" / file).read_text()
    served = {(each["metadata"]["name"], port["port"]) for each in documents(file) if each["kind"] == "Service"
              for port in each["spec"]["ports"]}  # fmt: skip
    ports = {port for _, port in served}
    listening = set(map(int, re.findall(r"--(?:serve|at|metrics-at)=\S*:(\d+)", text)))
    assert listening
    assert listening <= ports
    assert set(map(int, re.findall(r"path: /\w+, port: (\d+)", text))) <= listening
    sets = {each["metadata"]["name"]: each["spec"] for each in documents(file) if each["kind"] == "StatefulSet"}
    for value in re.findall(r'RECOVERY_OWNERS, value: "(.*)"', text):
        for number, owner in enumerate(value.split(",")):
            pod, service, port = re.fullmatch(r"([\w-]+)\.(\w+):(\d+)", owner).groups()
            assert (service, int(port)) in served
            assert pod == f"{service}-{number}"
            assert number < sets[service]["replicas"]


def test_what_yarn_is_given_exists():
    """tests/cluster/test_yarn.py runs it where that is possible."""
    text = (ROOT / "examples" / "cluster" / "yarn.sh").read_text()
    [words] = re.findall(r"exec python -m recovery (.*)", text.replace("\\\n", ""))
    check_command([each for each in shlex.split(words) if each != "$@"])


def test_what_starts_an_executor(tmp_path):
    """The entry point of the image gives Java each option as one word, in their order; any other command is run."""
    entrypoint = ROOT / "examples" / "cluster" / "entrypoint.sh"
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    options = ["-Done=a b", "-Dtwo=*", *(f"-D{number}=1" for number in range(2, 12))]
    given = {
        **{f"SPARK_JAVA_OPT_{number}": each for number, each in enumerate(options)},
        "SPARK_EXECUTOR_MEMORY": "512m", "SPARK_DRIVER_URL": "spark://x@words-0.words:7078", "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2", "SPARK_APPLICATION_ID": "app", "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
        "SPARK_RESOURCE_PROFILE_ID": "0", "SPARK_EXECUTOR_POD_NAME": "words-exec-1", "SPARK_CONF_DIR": "/conf",
        "JAVA_HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }  # fmt: skip
    words = subprocess.run(
        [entrypoint, "executor"], env=given, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert words[: len(options)] == options
    assert words[len(options) :][:3] == ["-Xms512m", "-Xmx512m", "-cp"]
    assert words[words.index("-cp") + 1].startswith("/conf:/")
    assert dict(zip(words[-14::2], words[-13::2], strict=True)) == {
        "--driver-url": "spark://x@words-0.words:7078", "--executor-id": "1", "--cores": "2", "--app-id": "app",
        "--hostname": "10.0.0.7", "--resourceProfileId": "0", "--podName": "words-exec-1",
    }  # fmt: skip
    other = subprocess.run([entrypoint, "echo", "a b"], capture_output=True, text=True, check=True)
    assert other.stdout == "a b\n"
