"""Checks the manifests of contrib/kubernetes: each by Kubernetes' own schemas, strictly, and
all of them against each other and against the settings beside them.

Usage: check.py FOLDER FACTS, where `kubernetes_validate` and `yaml` can be imported. FACTS is
JSON: `user`, `writable` (the folders that a container may write to) and `metrics` (the names
that the host exports).

The schemas know nothing of names: a selector that selects nothing, a port that no container
has, a ConfigMap that nobody makes are all valid. Those are looked at here.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import kubernetes_validate
import yaml

# The oldest version that has every field used, and the newest that the schemas know.
VERSIONS = ("1.31", "1.37")

# What a kustomization may say here: all that this script understands.
KUSTOMIZATION = {
    "apiVersion", "kind", "namespace", "labels", "resources", "configMapGenerator", "images",
}

# The rest of a stop, after `drain_delay` and the longer of `grace` and the timeout of ingest.
REST_OF_A_STOP = 10

UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


class Wrong(Exception):
    """What is wrong, for people."""


def ensure(holds, what):
    if not holds:
        raise Wrong(what)


def documents(file):
    return [document for document in yaml.safe_load_all(file.read_text()) if document]


def seconds(text):
    return sum(float(n) * UNITS[unit] for n, unit in re.findall(r"([\d.]+)\s*(ms|s|m|h)", text))


def is_validated(document, where):
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as why:
            path = ".".join(str(part) for part in why.path)
            raise Wrong(f"{where}: {document['kind']}: {path}: {why.message}") from why


def selects(selector, labels):
    return bool(selector) and all(labels.get(name) == value for name, value in selector.items())


def is_duration_within(settings, pod, where):
    ingest = seconds(settings.get("ingest", {}).get("timeout", "10s"))
    longest = seconds(settings.get("drain_delay", "0s"))
    longest += max(seconds(settings.get("grace", "30s")), ingest) + REST_OF_A_STOP
    given = pod["terminationGracePeriodSeconds"]
    ensure(given > longest, f"{where}: a stop may take {longest} s, and Kubernetes gives {given} s")


def is_locked(pod, facts, where):
    """The pod keeps to the profile `restricted`, and to a read-only root."""
    context = pod["securityContext"]
    ensure(context["runAsNonRoot"] is True, f"{where}: the pod may run as root")
    for name in ("runAsUser", "runAsGroup", "fsGroup"):
        ensure(context[name] == facts["user"], f"{where}: {name} is not {facts['user']}")
    seccomp = context["seccompProfile"]["type"]
    ensure(seccomp == "RuntimeDefault", f"{where}: its seccomp profile is {seccomp}")
    ensure(pod["automountServiceAccountToken"] is False, f"{where}: it gets a token of the cluster")
    # A Service's variables would begin with its name, as the host's own do.
    ensure(pod["enableServiceLinks"] is False, f"{where}: it gets variables of Services")
    for container in pod.get("initContainers", []) + pod["containers"]:
        context, name = container["securityContext"], f"{where}: container {container['name']}"
        ensure(context["readOnlyRootFilesystem"] is True, f"{name}: its root can be written to")
        ensure(context["allowPrivilegeEscalation"] is False, f"{name}: may gain rights")
        ensure(context["capabilities"] == {"drop": ["ALL"]}, f"{name}: has capabilities")
        resources = container["resources"]
        requests = resources["requests"].keys()
        ensure({"cpu", "memory"} <= requests, f"{name}: requests no processor or no memory")
        ensure("memory" in resources["limits"], f"{name}: no limit of memory")


def mounts_are_known(workload, pod, facts, config_maps, where):
    claims = workload["spec"].get("volumeClaimTemplates", [])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    volumes |= {claim["metadata"]["name"]: claim for claim in claims}
    for volume in pod["volumes"]:
        if "configMap" in volume:
            name = volume["configMap"]["name"]
            ensure(name in config_maps, f"{where}: nobody makes the ConfigMap {name}")
    used, written = set(), set()
    for container in pod.get("initContainers", []) + pod["containers"]:
        for mount in container["volumeMounts"]:
            name = mount["name"]
            ensure(name in volumes, f"{where}: there is no volume {name}")
            used.add(name)
            if not mount.get("readOnly"):
                written.add(mount["mountPath"])
    unused = volumes.keys() - used
    ensure(not unused, f"{where}: volumes that are not mounted: {unused}")
    stores = {"/data"} if claims else set()
    wanted = {folder for folder in facts["writable"] if folder != "/data"} | stores
    ensure(written == wanted, f"{where}: can write to {written}, and was tried with {wanted}")


def variables_are_set(text, pod, secrets, where):
    """Each variable of the settings is one of the containers', by a Secret of the example."""
    wanted = set(re.findall(r"\$\{([A-Z_]+)\}", text))
    for container in pod.get("initContainers", []) + pod["containers"]:
        variables = {variable["name"]: variable for variable in container.get("env", [])}
        missing = wanted - variables.keys()
        ensure(not missing, f"{where}: container {container['name']} lacks {missing}")
        for variable in variables.values():
            key = variable["valueFrom"]["secretKeyRef"]
            ensure(
                key["key"] in secrets.get(key["name"], {}),
                f"{where}: the example has no Secret {key['name']} with {key['key']}",
            )


def ports_fit(settings, pod, services, where):
    """Listeners, ports, Services and probes are about the same ports; a listener takes the names
    of the Services that lead to it."""
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    listeners = {}
    for name, listener in settings["listen"].items():
        listeners[int(listener["address"].rpartition(":")[2])] = listener
        ensure(
            ports.get(name) == int(listener["address"].rpartition(":")[2]),
            f"{where}: the container has no port {name} for [listen.{name}]",
        )
    ensure(len(ports) == len(listeners), f"{where}: ports without a listener: {ports}")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        ensure(asked["port"] in ports, f"{where}: {probe}: no port {asked['port']}")
        listener = listeners[ports[asked["port"]]]
        ensure("health" in listener["serve"], f"{where}: {probe}: no health at {asked['port']}")
        wanted = "/readyz" if probe == "readinessProbe" else "/livez"
        ensure(asked["path"] == wanted, f"{where}: {probe} asks {asked['path']}")
    ensure(
        "ingest" in listeners[ports[container["readinessProbe"]["httpGet"]["port"]]]["serve"],
        f"{where}: readiness is asked where no events come in, and does not see a full queue",
    )
    for service in services:
        name = service["metadata"]["name"]
        for port in service["spec"]["ports"]:
            target = port["targetPort"]
            ensure(target in ports, f"{where}: Service {name}: no port {target}")
            hosts = set(listeners[ports[target]]["hosts"])
            called = f"{name}.event-host.svc.cluster.local"
            for known in (name, f"{name}.event-host", f"{name}.event-host.svc", called):
                ensure(known in hosts, f"{where}: [listen.{target}] is not asked as {known}")


def kustomized(folder):
    """The documents of a kustomization, the ConfigMaps that it makes, and its namespace."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = kustomization.keys() - KUSTOMIZATION
    ensure(not unknown, f"{folder}: {unknown} in kustomization.yaml is not understood here")
    files = {folder / name for name in kustomization["resources"]}
    others = {folder / "kustomization.yaml", folder / "secret.example.yaml"}
    lying_about = set(folder.glob("*.yaml")) - files - others
    ensure(not lying_about, f"{folder}: not in kustomization.yaml: {lying_about}")
    config_maps = {}
    for generator in kustomization["configMapGenerator"]:
        for name in generator["files"]:
            ensure((folder / name).is_file(), f"{folder}: there is no {name}")
        size = sum((folder / name).stat().st_size for name in generator["files"])
        ensure(size < 1 << 20, f"{folder}: {generator['name']} has {size} bytes: 1 MiB is the most")
        config_maps[generator["name"]] = generator["files"]
    found = [document for file in sorted(files) for document in documents(file)]
    images = {image["name"] for image in kustomization["images"]}
    return found, config_maps, kustomization["namespace"], images


def check_variant(folder, facts):
    found, config_maps, namespace, images = kustomized(folder)
    for document in found:
        is_validated(document, folder.name)
    example = folder / "secret.example.yaml"
    secrets = {}
    for document in documents(example) if example.exists() else []:
        is_validated(document, example)
        ensure(document["metadata"]["namespace"] == namespace, f"{example}: another namespace")
        secrets[document["metadata"]["name"]] = document["stringData"]
    of = lambda kind: [document for document in found if document["kind"] == kind]
    (workload,) = of("Deployment") + of("StatefulSet")
    (settings_map,) = config_maps.items()
    ensure("handlers.toml" in settings_map[1], f"{folder}: no handlers.toml in {settings_map[0]}")
    text = (folder / "handlers.toml").read_text()
    settings = tomllib.loads(text)
    pod, where = workload["spec"]["template"]["spec"], folder.name
    labels = workload["spec"]["template"]["metadata"]["labels"]
    made = {document["metadata"]["name"] for document in of("Namespace")}
    ensure(made == {namespace}, f"{where}: it makes {made}, and not the namespace {namespace}")
    own = selects(workload["spec"]["selector"]["matchLabels"], labels)
    ensure(own, f"{where}: it does not select its own pods")
    for service in of("Service"):
        ensure(selects(service["spec"]["selector"], labels), f"{where}: a Service selects nothing")
    if workload["kind"] == "StatefulSet":
        names = {service["metadata"]["name"] for service in of("Service")}
        name = workload["spec"]["serviceName"]
        ensure(name in names, f"{where}: there is no Service {name}")
        ensure(workload["spec"]["replicas"] == 1, f"{where}: more than one host on one file")
    else:
        (budget,) = of("PodDisruptionBudget")
        held = selects(budget["spec"]["selector"]["matchLabels"], labels)
        ensure(held, f"{where}: the PodDisruptionBudget selects nothing")
        ensure(workload["spec"]["replicas"] >= 3, f"{where}: fewer than three hosts")
        for spread in pod["topologySpreadConstraints"]:
            selector = spread["labelSelector"]["matchLabels"]
            ensure(selects(selector, labels), f"{where}: {spread['topologyKey']} spreads nothing")
    (policy,) = of("NetworkPolicy")
    held = selects(policy["spec"]["podSelector"]["matchLabels"], labels)
    ensure(held, f"{where}: the NetworkPolicy selects nothing")
    ports = {port["name"] for port in pod["containers"][0]["ports"]}
    allowed = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    ensure(allowed == ports, f"{where}: the policy lets in {allowed}, and the ports are {ports}")
    for container in pod.get("initContainers", []) + pod["containers"]:
        ensure(container["image"] in images, f"{where}: the kustomization sets no such image")
    is_locked(pod, facts, where)
    mounts_are_known(workload, pod, facts, config_maps, where)
    variables_are_set(text, pod, secrets, where)
    is_duration_within(settings, pod, where)
    ports_fit(settings, pod, of("Service"), where)
    print(f"kubernetes: {where}: {len(found)} objects are valid and fit together")
    return found


def check_extras(folder, found, metrics):
    """The extras are of kinds whose schemas are not here: what they refer to is looked at."""
    services = [document for document in found if document["kind"] == "Service"]
    for file in sorted(folder.glob("*.yaml")):
        (document,) = documents(file)
        spec, where = document["spec"], f"{folder.name}/{file.name}"
        if document["kind"] == "ServiceMonitor":
            selector = spec["selector"]["matchLabels"]
            chosen = [s for s in services if selects(selector, s["metadata"]["labels"])]
            ensure(len(chosen) == 1, f"{where}: selects {len(chosen)} Services, not one")
            ports = {port["name"] for port in chosen[0]["spec"]["ports"]}
            for endpoint in spec["endpoints"]:
                ensure(endpoint["port"] in ports, f"{where}: no port {endpoint['port']}")
                ensure(endpoint["path"] == "/metrics", f"{where}: {endpoint['path']}")
        elif document["kind"] == "ScaledObject":
            target = spec["scaleTargetRef"]
            names = {(d["apiVersion"], d["kind"], d["metadata"]["name"]) for d in found}
            wanted = (target["apiVersion"], target["kind"], target["name"])
            ensure(wanted in names, f"{where}: there is no {wanted}")
            for trigger in spec["triggers"]:
                named = set(re.findall(r"\bevent_host_\w+", trigger["metadata"]["query"]))
                ensure(named, f"{where}: asks for no metric")
                ensure(named <= metrics, f"{where}: no host exports {named - metrics}")
        else:
            raise Wrong(f"{where}: {document['kind']} is not known here")
        print(f"kubernetes: {where}: what it refers to is there; its schema is not looked at")


def check_rendered(folder):
    """What kustomize makes of it, by kubectl if that is here."""
    made = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True)
    ensure(made.returncode == 0, f"{folder.name}: {made.stderr.strip()}")
    found = [document for document in yaml.safe_load_all(made.stdout) if document]
    for document in found:
        is_validated(document, f"{folder.name}, as kustomize makes it")
    print(f"kubernetes: {folder.name}: kustomize makes {len(found)} valid objects of it")


def main():
    folder, facts = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
    variants = {name: check_variant(folder / name, facts) for name in ("postgres", "sqlite")}
    check_extras(folder / "extras", variants["postgres"], set(facts["metrics"]))
    if shutil.which("kubectl"):
        for name in variants:
            check_rendered(folder / name)
    else:
        print("kubernetes: leaves out what kustomize makes of the manifests: there is no kubectl")


if __name__ == "__main__":
    try:
        main()
    except Wrong as why:
        sys.exit(f"error: {why}")
