"""Tables that check the files of deploy/ without a cluster, and what a mistake in them leads to."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import yaml
from page_code_steps import known_variables, parse_problems
from pages import ROOT
from tables import rule

DEPLOY = ROOT / "deploy"
VERSION = ".".join(str(kubernetes_validate.latest_version()).split(".")[:2])
Files = dict[str, dict[str, Any]]


def files(folder: str) -> Files:
    """The content of each file of YAML in a folder of deploy/, by the file's name."""
    paths = sorted((DEPLOY / folder).glob("*.yaml"))
    assert paths
    found = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in paths}
    return json.loads(json.dumps(found))  # aliases become copies, so a change is of one place


def change(value: Any, field: str, new: str) -> None:
    """Set the field that a path such as `spec.ports.0` leads to; an empty value removes it."""
    *inner, last = (int(name) if name.isdecimal() else name for name in field.split("."))
    for name in inner:
        value = value[name]
    if new:
        value[last] = json.loads(new)
    else:
        del value[last]


# Kubernetes


def of_kind(found: Files, kind: str) -> list[dict[str, Any]]:
    some = [each for each in found.values() if each["kind"] == kind]
    assert some, f"there is no {kind}"
    return some


def pods(found: Files) -> dict[str, dict[str, Any]]:
    """The templates of pods, by the names of their deployments."""
    deployments = of_kind(found, "Deployment")
    return {each["metadata"]["name"]: each["spec"]["template"] for each in deployments}


def containers(found: Files) -> Iterator[dict[str, Any]]:
    for pod in pods(found).values():
        yield from pod["spec"]["containers"]


def manifest_problems(found: Files) -> Iterator[str]:
    listed = found["kustomization.yaml"]["resources"]
    rest = {name: each for name, each in found.items() if name != "kustomization.yaml"}
    if sorted([*listed, "secret.yaml"]) != sorted(rest):
        yield f"the kustomization lists {', '.join(listed)}"
    for name, manifest in rest.items():
        try:
            kubernetes_validate.validate(copy.deepcopy(manifest), VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{name} is not valid: {error.message}"
        # What only one cloud understands
        for key in sorted(keys(manifest) & {"annotations", "storageClassName"}):
            yield f"{name} has {key}"
        if manifest.get("spec", {}).get("type", "ClusterIP") != "ClusterIP":
            yield f"{name} is a {manifest['spec']['type']}"
    yield from selector_problems(rest)
    yield from port_problems(rest)
    yield from secret_problems(rest)
    for container in containers(rest):
        yield from command_problems(container["command"], container["args"])
        yield from variable_problems(each["name"] for each in container["env"])


def keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for each in value.values() for key in keys(each)}
    return {key for each in value for key in keys(each)} if isinstance(value, list) else set()


def selector_problems(found: Files) -> Iterator[str]:
    labels = {name: pod["metadata"]["labels"].items() for name, pod in pods(found).items()}
    for kind in ("Deployment", "PodDisruptionBudget", "Service"):
        for manifest in of_kind(found, kind):
            selector, name = manifest["spec"]["selector"], manifest["metadata"]["name"]
            wanted = selector.get("matchLabels", selector).items()
            selected = [each for each, own in labels.items() if wanted <= own]
            if selected != [name]:
                yield f"the {kind} {name} selects {', '.join(selected) or 'nothing'}"


def port_problems(found: Files) -> Iterator[str]:
    for container in containers(found):
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if (asked := container[probe]["httpGet"]["port"]) not in ports:
                yield f"the {probe} of {container['name']} asks the port {asked}"
        served = re.search(r"--(?:health|port) (\d+)", " ".join(container["args"]))
        # The gateway's port by default.
        if ports["http"] != int(served[1] if served else 8788):
            yield f"the command of {container['name']} does not serve the port {ports['http']}"
    for service in of_kind(found, "Service"):
        if (target := service["spec"]["ports"][0]["targetPort"]) != "http":
            yield f"the service leads to the port {target}"


def secret_problems(found: Files) -> Iterator[str]:
    (secret,) = of_kind(found, "Secret")
    wanted = {
        (reference["name"], reference["key"])
        for container in containers(found)
        for variable in container["env"]
        if (reference := variable.get("valueFrom", {}).get("secretKeyRef"))
    }
    for pod in pods(found).values():
        for volume in pod["spec"]["volumes"]:
            if mounted := volume.get("secret"):
                wanted |= {(mounted["secretName"], item["key"]) for item in mounted["items"]}
    example = {(secret["metadata"]["name"], key) for key in secret["stringData"]}
    for name, key in sorted(wanted ^ example):
        yield f"{key} of the secret {name} is not both wanted and in the example"


def command_problems(program: list[str], words: list[str]) -> Iterator[str]:
    if program != ["claude-batch"]:
        yield f"it starts {program}"
    yield from parse_problems(words)


def variable_problems(names: Iterator[str]) -> Iterator[str]:
    for name in sorted(set(names) - known_variables() - {"PGPASSWORD"}):
        yield f"nothing reads the variable {name}"


@rule("the manifests, after a change, have problems")
def _(file: str, field: str, value: str) -> dict[str, str]:
    found = files("kubernetes")
    if file:
        change(found[file], field, value)
    return {"problem": "\n".join(manifest_problems(found))}


# Compose


def services() -> Files:
    """The services of Compose that run this project."""
    found = files("")["compose.yaml"]["services"]
    return {name: service for name, service in found.items() if "build" in service}


def compose_problems(found: dict[str, Any]) -> Iterator[str]:
    for name, service in found["services"].items():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if not source.startswith("./") and source not in found["volumes"]:
                yield f"{name} names the volume {source}"
        for port in service.get("ports", []):
            if not port.startswith("127.0.0.1:"):
                yield f"other machines reach the port {port} of {name}"
        if "build" not in service:
            continue
        if (DEPLOY / service["build"]).resolve() != ROOT:
            yield f"{name} builds {service['build']}"
        yield from command_problems(service["entrypoint"], service["command"])
        yield from variable_problems(iter(service["environment"]))


@rule("Compose, after a change, has problems")
def _(field: str, value: str) -> dict[str, str]:
    found = files("")["compose.yaml"]
    if field:
        change(found, field, value)
    return {"problem": "\n".join(compose_problems(found))}


@rule("the services of Compose are started")
def _(service: str) -> dict[str, Any]:
    found = files("")["compose.yaml"]["services"][service]
    return {
        "command": " ".join(found.get("command", [])),
        "replicas": found.get("deploy", {}).get("replicas", 1),
        "once_healthy": ", ".join(
            name
            for name, each in found.get("depends_on", {}).items()
            if each == {"condition": "service_healthy"}
        ),
        "health_check": " ".join(found["healthcheck"]["test"][1:]),
    }


# Image


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile with their arguments."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.split("\n"))]


def check_image(text: str) -> None:
    found = instructions(text)
    assert {word for word, _ in found if word} == {
        *("FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "ENTRYPOINT", "CMD")
    }
    given = {word: [rest for each, rest in found if each == word] for word, _ in found}
    assert all(base.startswith("debian:") for base in given["FROM"])
    programs = {part.split()[0] for rest in given["RUN"] for part in rest.split(" && ")}
    folder = "/opt/claude-batch"
    pip = f"{folder}/bin/pip"
    assert programs == {"apt-get", "python3", pip, "rm", "groupadd", "useradd"}, programs
    # What is built
    copied = [rest.split() for rest in given["COPY"]]
    *sources, (stage, first, second) = copied
    assert [stage, first, second] == ["--from=build", folder, folder]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {"pyproject.toml", project["readme"], *project["license-files"], "src"}
    names = [name for *some, _ in sources for name in some]
    assert set(names) == needed == set(_reaching_the_builder()), names
    assert all(target in ("./", "src") for *_, target in sources)
    # What is installed
    (extras,) = re.findall(r"pip install .*'\.\[([\w,]+)\]'", text)
    known = project["optional-dependencies"]
    assert set(extras.split(",")) == {"postgres", *(set(services()) & set(known))}, extras
    # How it runs
    for pod in pods(files("kubernetes")).values():
        rights = pod["spec"]["securityContext"]
        user, group = rights["runAsUser"], rights["runAsGroup"]
        assert given["USER"] == [f"{user}:{group}"]
        assert f"useradd --uid {user} --gid {group}" in text and f"groupadd --gid {group}" in text
    variables = dict(rest.split("=", 1) for rest in given["ENV"])
    assert variables.pop("PATH") == f"{folder}/bin:$PATH"
    assert set(variables) <= known_variables(), variables
    for service in services().values():
        assert given["ENTRYPOINT"] == [json.dumps(service["entrypoint"])]
    assert not list(parse_problems(json.loads(given["CMD"][0])))


def _reaching_the_builder() -> Iterator[str]:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in lines
    for line in lines:
        if line.startswith("!"):
            yield line[1:]


@rule("the Dockerfile, after a change, fits the project, the manifests and Compose,")
def _(this: str, becomes: str) -> dict[str, bool]:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    assert this in text, this
    try:
        check_image(text.replace(this, becomes))
    except (AssertionError, ValueError):
        return {"fits": False}
    return {"fits": True}
