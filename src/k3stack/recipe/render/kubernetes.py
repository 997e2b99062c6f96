"""A deployment as Kubernetes manifests: a LeaderWorkerSet for each engine role, services, and the router.

Needs the LeaderWorkerSet controller (lws.sigs.k8s.io), a secret `hf-token`, and a claim `k3-models` for the weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from k3stack.recipe.deployment import Deployment, Role
from k3stack.recipe.render.words import PATCH_FOLDER, join
from k3stack.recipe.render.yaml_text import yaml_documents

__all__ = ["render"]

STARTUP_MINUTES = 120
"""How long a pod may load before it is started anew: 1.6 TB over a slow disk or network takes more than an hour."""

_PLACE = re.compile(r"\{(self)\}")


def render(deployment: Deployment) -> str:
    """Manifests for `kubectl apply -f`."""
    documents = [document for role in deployment.roles for document in _role(deployment, role)]
    return yaml_documents((*deployment.notes, *_how(deployment)), *documents)


def _how(deployment: Deployment) -> Iterator[str]:
    yield "Before: install LeaderWorkerSet (lws.sigs.k8s.io); create a secret hf-token with the key token,"
    yield "and a claim k3-models of 2 TB (ReadWriteMany for several pods)."
    if deployment.patches:
        yield "Put the runtime patches into a config map: kubectl create configmap k3-patches --from-file=FOLDER."
    if deployment.several_nodes and not deployment.rack:
        yield "rdma/hca is the RDMA device plugin's resource; its name differs between clusters."
    if deployment.rack:
        yield "Pods of one rack need an IMEX channel: add the claim of your ComputeDomain (NVIDIA DRA driver)."


def _role(deployment: Deployment, role: Role) -> Iterator[dict[str, Any]]:
    name = f"k3-{role.name}"
    if role.name == "router":
        yield _router(deployment, role, name)
        yield _service(name, role, {"app": name})
        return
    yield {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "leaderWorkerTemplate": {
                "size": role.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                **_templates(deployment, role, name),
            },
        },
    }
    labels = {"leaderworkerset.sigs.k8s.io/name": name}
    if role.doors == 1:
        labels["leaderworkerset.sigs.k8s.io/worker-index"] = "0"
    yield _service(f"{name}-api", role, labels)


def _templates(deployment: Deployment, role: Role, name: str) -> dict[str, Any]:
    """Pods of rank 0 and of the others. The definition requires the others' even where the leader is alone."""
    leader = _template(deployment, role, name, worker=False)
    if role.nodes == 1:
        return {"workerTemplate": leader}
    return {"leaderTemplate": leader, "workerTemplate": _template(deployment, role, name, worker=True)}


def _service(name: str, role: Role, selector: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "type": "ClusterIP",
            "selector": selector,
            "ports": [{"name": "http", "port": role.port, "targetPort": role.port}],
        },
    }


def _template(deployment: Deployment, role: Role, name: str, worker: bool) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": role.name,
        "image": role.image or deployment.pinned_image,
        "command": ["sh", "-c", _start(role, worker)],
        "env": list(_environment(deployment, role)),
        "resources": _resources(deployment, role),
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "volumeMounts": [
            {"name": "models", "mountPath": "/root/.cache/huggingface"},
            {"name": "shm", "mountPath": "/dev/shm"},
            *([{"name": "patches", "mountPath": PATCH_FOLDER, "readOnly": True}] if deployment.patches else []),
        ],
    }
    if not worker or role.doors > 1:
        container |= {"ports": [{"containerPort": role.port}], **_probes(role)}
    return {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [container], "volumes": list(_volumes(deployment))},
    }


def _start(role: Role, worker: bool) -> str:
    """The command of a pod; the controller tells it its rank and the leader's address."""
    filled = {
        "rank": "$LWS_WORKER_INDEX",
        "head": "$LWS_LEADER_ADDRESS",
        "self": "$POD_IP",
        "dp_start": f"$((LWS_WORKER_INDEX * {role.local_replicas}))",
        "prefill": "k3-prefill-api",
        **{f"decode{door}": _door(door) for door in range(_doors(role))},
    }
    return "exec " + join(role.command.words(worker=worker), filled)


def _doors(role: Role) -> int:
    """How many decode doors a router's command names."""
    return sum(flag.name == "decode" for flag in role.command.flags)


def _door(number: int) -> str:
    """The name that the controller gives the pod behind a decode door."""
    return "k3-decode-0.k3-decode" if number == 0 else f"k3-decode-0-{number}.k3-decode"


def _environment(deployment: Deployment, role: Role) -> Iterator[dict[str, Any]]:
    yield {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}}
    yield {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    for variable in role.command.environment:
        yield {"name": variable.name, "value": _PLACE.sub("$(POD_IP)", variable.value)}
    if deployment.patches:
        yield {"name": "PYTHONPATH", "value": PATCH_FOLDER}


def _resources(deployment: Deployment, role: Role) -> dict[str, Any]:
    kind = "amd.com/gpu" if deployment.vendor == "amd" else "nvidia.com/gpu"
    limits: dict[str, Any] = {kind: str(role.gpus_per_node)}
    if deployment.several_nodes and not deployment.rack:
        limits["rdma/hca"] = "1"
    return {"limits": limits, "requests": dict(limits)}


def _probes(role: Role) -> dict[str, Any]:
    asked = {"httpGet": {"path": "/health", "port": role.port}}
    return {
        "startupProbe": {**asked, "periodSeconds": 10, "failureThreshold": STARTUP_MINUTES * 6},
        "readinessProbe": {**asked, "periodSeconds": 10, "timeoutSeconds": 5},
        "livenessProbe": {**asked, "periodSeconds": 30, "timeoutSeconds": 10, "failureThreshold": 5},
    }


def _volumes(deployment: Deployment) -> Iterator[dict[str, Any]]:
    yield {"name": "models", "persistentVolumeClaim": {"claimName": "k3-models"}}
    yield {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}
    if deployment.patches:
        yield {"name": "patches", "configMap": {"name": "k3-patches"}}


def _router(deployment: Deployment, role: Role, name: str) -> dict[str, Any]:
    program = role.command.image_program or role.command.program
    flags = [word for flag in role.command.flags for word in flag.words()]
    filled = {"prefill": "k3-prefill-api", **{f"decode{door}": _door(door) for door in range(_doors(role))}}
    container = {
        "name": "router",
        "image": role.image or deployment.pinned_image,
        "command": ["sh", "-c", "exec " + join([*program, *flags], filled)],
        "ports": [{"containerPort": role.port}],
        "readinessProbe": {"tcpSocket": {"port": role.port}, "periodSeconds": 10},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
        },
    }
