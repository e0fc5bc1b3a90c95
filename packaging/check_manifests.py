"""Validates files with manifests of Kubernetes and of KEDA:  check_manifests.py FILE..."""

import sys

import cloudcoil.models.keda.v1alpha1 as keda
import kubernetes_validate
import yaml


def lost(wanted, found, path):
    """The fields of `wanted` that `found` lacks or has otherwise: the models pass over unknown ones."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [one for key, value in wanted.items() for one in lost(value, found.get(key), f"{path}.{key}")]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = enumerate(zip(wanted, found, strict=True))
        return [one for index, pair in pairs for one in lost(*pair, f"{path}[{index}]")]
    return [] if wanted == found else [path]


def validate(document):
    kind = document["kind"]
    if document["apiVersion"].startswith("keda.sh/"):
        read = getattr(keda, kind).model_validate(document).model_dump(by_alias=True, mode="json")
        assert not (unknown := lost(document, read, kind)), f"KEDA knows no {unknown}"
    else:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    return kind


for file in sys.argv[1:]:
    with open(file, encoding="utf-8") as text:
        kinds = [validate(document) for document in yaml.safe_load_all(text) if document]
    assert kinds, f"{file} is empty"
    print(", ".join(kinds))
