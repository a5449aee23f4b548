"""Steps that check the files of deploy/ without a cluster."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import kubernetes_validate
import yaml
from behave import given, then
from behave.runner import Context
from page_code_steps import known_variables, parse_problems
from pages import ROOT

DEPLOY = ROOT / "deploy"
FOLDER = DEPLOY / "kubernetes"
VERSION = ".".join(str(kubernetes_validate.latest_version()).split(".")[:2])
Manifests = dict[str, dict[str, Any]]


def manifests() -> Manifests:
    """The content of each file but the kustomization, by the file's name."""
    paths = sorted(FOLDER.glob("*.yaml"))
    assert paths
    found = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in paths}
    del found["kustomization.yaml"]
    return found


def chosen(context: Context) -> Manifests:
    return getattr(context, "manifests", None) or manifests()


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    return found


def of_kind(found: Manifests, kind: str) -> list[dict[str, Any]]:
    some = [each for each in found.values() if each["kind"] == kind]
    assert some, f"there is no {kind}"
    return some


def containers(found: Manifests) -> Iterator[dict[str, Any]]:
    for deployment in of_kind(found, "Deployment"):
        yield from deployment["spec"]["template"]["spec"]["containers"]


# Kubernetes


@then("the manifests are valid, and unknown fields are errors")
def valid(context: Context) -> None:
    for manifest in chosen(context).values():
        kubernetes_validate.validate(copy.deepcopy(manifest), VERSION, strict=True)


@then("the kustomization lists all manifests but the secret")
def _(context: Context) -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text("utf-8"))["resources"]
    assert sorted([*listed, "secret.yaml"]) == sorted(manifests())


@then("selectors find the pods that they are meant for")
def selectors(context: Context) -> None:
    found = chosen(context)
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in of_kind(found, "Deployment")
    }
    for kind in ("Deployment", "PodDisruptionBudget", "Service"):
        for manifest in of_kind(found, kind):
            selector = manifest["spec"]["selector"]
            wanted = selector.get("matchLabels", selector)
            selected = [name for name, labels in pods.items() if wanted.items() <= labels.items()]
            assert selected == [manifest["metadata"]["name"]], (kind, selected)


@then("each probe and service names a port of its container")
def ports(context: Context) -> None:
    found = chosen(context)
    for container in containers(found):
        names = [port["name"] for port in container["ports"]]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] in names, container["name"]
        served = re.search(r"--(?:health|port) (\d+)", " ".join(container["args"]))
        # The gateway's port by default.
        assert container["ports"][0]["containerPort"] == int(served[1] if served else 8788)
    for service in of_kind(found, "Service"):
        assert service["spec"]["ports"][0]["targetPort"] == "http"


@then("each key of a secret that a container wants is in the example")
def secrets(context: Context) -> None:
    found = chosen(context)
    (secret,) = of_kind(found, "Secret")
    wanted = {
        (reference["name"], reference["key"])
        for container in containers(found)
        for variable in container["env"]
        if (reference := variable.get("valueFrom", {}).get("secretKeyRef"))
    }
    for deployment in of_kind(found, "Deployment"):
        for volume in deployment["spec"]["template"]["spec"]["volumes"]:
            if mounted := volume.get("secret"):
                wanted |= {(mounted["secretName"], item["key"]) for item in mounted["items"]}
    assert wanted == {(secret["metadata"]["name"], key) for key in secret["stringData"]}, wanted


@then("no manifest has an annotation, a storage class, or a load balancer")
def _(context: Context) -> None:
    for name, manifest in manifests().items():
        assert not list(keys(manifest) & {"annotations", "storageClassName"}), name
        assert manifest.get("spec", {}).get("type", "ClusterIP") == "ClusterIP", name


def keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for each in value.values() for key in keys(each)}
    return {key for each in value for key in keys(each)} if isinstance(value, list) else set()


# Both


def services() -> dict[str, dict[str, Any]]:
    """The services of Compose that run this project."""
    return {name: service for name, service in compose()["services"].items() if "build" in service}


@then("each command of the manifests and of Compose can be parsed")
def commands(context: Context) -> None:
    found = [(each["command"], each["args"]) for each in containers(chosen(context))]
    found += [(each["entrypoint"], each["command"]) for each in services().values()]
    for program, words in found:
        assert program == ["claude-batch"]
        assert not list(parse_problems(words)), list(parse_problems(words))


@then("each variable of them is read by the package or by PostgreSQL")
def _(context: Context) -> None:
    names = {each["name"] for container in containers(manifests()) for each in container["env"]}
    names |= {name for service in services().values() for name in service["environment"]}
    assert names <= known_variables() | {"PGPASSWORD"}, names - known_variables()


@then("each health check asks the port that its command serves")
def _(context: Context) -> None:
    for name, port in (("worker", "8791"), ("gateway", "8788"), ("dashboard", "8790")):
        assert f":{port}/" in services()[name]["healthcheck"]["test"][-1]
    assert services()["worker"]["command"] == ["worker", "--health", "8791"]


# Compose


@then("Compose builds the root of the project")
def _(context: Context) -> None:
    for service in services().values():
        assert (DEPLOY / service["build"]).resolve() == ROOT


@then("Compose has {count:d} workers, which wait for PostgreSQL")
def _(context: Context, count: int) -> None:
    worker = services()["worker"]
    assert worker["deploy"]["replicas"] == count
    assert worker["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert compose()["services"]["postgres"]["healthcheck"]["test"][1] == "pg_isready"


@then("each volume that Compose names is declared")
def _(context: Context) -> None:
    for service in compose()["services"].values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source.startswith("./") or source in compose()["volumes"], source


@then("only this machine reaches what Compose serves")
def _(context: Context) -> None:
    published = [port for each in compose()["services"].values() for port in each.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


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
    files = [name for *names, _ in sources for name in names]
    assert set(files) == needed == set(_reaching_the_builder()), files
    assert all(target in ("./", "src") for *_, target in sources)
    # What is installed
    (extras,) = re.findall(r"pip install .*'\.\[([\w,]+)\]'", text)
    known = project["optional-dependencies"]
    assert set(extras.split(",")) == {"postgres", *(set(services()) & set(known))}, extras
    # How it runs
    for deployment in of_kind(manifests(), "Deployment"):
        rights = deployment["spec"]["template"]["spec"]["securityContext"]
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
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        if line.startswith("!"):
            yield line[1:]


@then("the Dockerfile fits the project, the manifests and Compose")
def _(context: Context) -> None:
    check_image((ROOT / "Dockerfile").read_text("utf-8"))
    assert "\n*\n" in (ROOT / ".dockerignore").read_text("utf-8")


@then("the Dockerfile does not fit if")
def _(context: Context) -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    for row in context.table:
        assert row["this"] in text, row["this"]
        try:
            check_image(text.replace(row["this"], row["is"]))
        except (AssertionError, ValueError):
            continue
        raise AssertionError(f"no check has found {row['is']!r} in place of {row['this']!r}")


# Mistakes


def _unknown_field(found: Manifests) -> None:
    found["worker.yaml"]["spec"]["replica"] = 3


def _no_pods(found: Manifests) -> None:
    found["worker-disruptions.yaml"]["spec"]["selector"]["matchLabels"] = {"app": "worker"}


def _unknown_port(found: Manifests) -> None:
    next(containers(found))["readinessProbe"]["httpGet"]["port"] = "health"


def _no_key(found: Manifests) -> None:
    del found["secret.yaml"]["stringData"]["tokens"]


def _no_option(found: Manifests) -> None:
    next(containers(found))["args"].append("--healthy")


MISTAKES: dict[str, tuple[Callable[[Manifests], None], Callable[[Context], None]]] = {
    "an unknown field": (_unknown_field, valid),
    "a disruption budget for no pods": (_no_pods, selectors),
    "a probe of an unknown port": (_unknown_port, ports),
    "a key that the secret lacks": (_no_key, secrets),
    "an option that there is not": (_no_option, commands),
}


@given("the manifests with {mistake}")
def _(context: Context, mistake: str) -> None:
    # Each file is read anew, so a mistake changes nothing else.
    context.manifests = manifests()
    change, context.check = MISTAKES[mistake]
    context.check(context)
    change(context.manifests)


@then("a check of the manifests fails")
def _(context: Context) -> None:
    try:
        context.check(context)
    except (AssertionError, kubernetes_validate.ValidationError):
        return
    raise AssertionError("no check has found it")
