"""Keeps the labels of nodes, as one writes it with kopf: handlers for create, update and delete, and a timer."""

import json
import os

import kopf
import kubernetes

NAMESPACE = os.environ["KEEPER_NAMESPACE"]
kubernetes.config.load_kube_config()
configuration = kubernetes.client.Configuration.get_default_copy()
# One connection for each worker, instead of a new one for each request.
configuration.connection_pool_maxsize = 32
core = kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(configuration))


@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.execution.max_workers = 16


def store(name, labels):
    body = {"metadata": {"name": name}, "data": {"labels": json.dumps(dict(labels))}}
    try:
        core.replace_namespaced_config_map(name, NAMESPACE, body)
    except kubernetes.client.ApiException as error:
        if error.status != 404:
            raise
        core.create_namespaced_config_map(NAMESPACE, body)


def stored(name):
    try:
        found = core.read_namespaced_config_map(name, NAMESPACE)
    except kubernetes.client.ApiException as error:
        if error.status == 404:
            return None
        raise
    return json.loads(found.data["labels"])


@kopf.on.create("", "v1", "nodes")
def created(name, labels, **_):
    kept = stored(name)
    if kept is None:
        store(name, labels)
        return
    missing = {key: value for key, value in kept.items() if key not in labels}
    if missing:
        core.patch_node(name, {"metadata": {"labels": missing}})


@kopf.on.update("", "v1", "nodes", field="metadata.labels")
def updated(name, labels, **_):
    store(name, labels)


@kopf.on.delete("", "v1", "nodes")
def deleted(name, labels, **_):
    store(name, labels)


# The first turn waits: one that fires at once stores the bare labels of a node that has just returned.
@kopf.timer("", "v1", "nodes", interval=300, initial_delay=300)
def every_five_minutes(name, labels, **_):
    store(name, labels)
