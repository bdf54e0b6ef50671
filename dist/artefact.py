"""OCI artefacts beside the image: the lists of components that belong to the image index, and the chart."""

import json

import archive
from image import INDEX, MANIFEST, describe, digest, dump, in_index, labels

SPDX = "application/spdx+json"
EMPTY = "application/vnd.oci.empty.v1+json"
CHART_CONFIG = "application/vnd.cncf.helm.config.v1+json"
CHART_LAYER = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
REFERENCE = "org.opencontainers.image.ref.name"


def index(images, version, revision):
    """Returns the image index of {architecture: manifest}."""
    manifests = [in_index(manifest, arch) for arch, manifest in images.items()]
    return dump({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests, "annotations": labels(version, revision)})


def entry(manifest, kind, reference):
    """Returns the descriptor of an entry point of a layout, with the tag by which it is found."""
    return describe(kind, manifest, annotations={REFERENCE: reference})


def attached(subject, documents, created):
    """Attaches {file name: SPDX document} to an image index. Returns the index of the attachments, its tag, and all blobs.

    The tag is the one by which clients find attachments in a registry without the referrers API of OCI 1.1."""
    config = b"{}"
    blobs, found = [config], []
    for name, document in documents.items():
        notes = {"org.opencontainers.image.created": created, "org.opencontainers.image.title": name}
        manifest = dump({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": SPDX,
            "config": describe(EMPTY, config),
            "layers": [describe(SPDX, document, annotations={"org.opencontainers.image.title": name})],
            "subject": describe(INDEX, subject),
            "annotations": notes,
        })
        blobs += [document, manifest]
        found.append(describe(MANIFEST, manifest, artifactType=SPDX, annotations=notes))
    referrers = dump({"schemaVersion": 2, "mediaType": INDEX, "manifests": found})
    return referrers, digest(subject).replace(":", "-"), [*blobs, referrers]


def about_chart(text):
    """Parses Chart.yaml, which has one `key: value` a line and nothing else."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = [line.partition(": ") for line in lines]
    if any(line[0] in " -" or not colon or not value or value[0] in "|>[{&*" for line, (_, colon, value) in zip(lines, pairs)):
        raise ValueError("Chart.yaml has more than one `key: value` a line")
    return {key: value.strip('"') for key, _, value in pairs}


def chart(files, created, time):
    """Packs {path in the chart: content} as Helm does. Returns the archive, the manifest and its blobs."""
    about = about_chart(files["Chart.yaml"].decode())
    # Chart.yaml is the first file of a chart.
    order = sorted(files, key=lambda path: (path != "Chart.yaml", path))
    packed = archive.compress(archive.tar({f"{about['name']}/{path}": (files[path], 0o644) for path in order}, time))
    config = json.dumps(about, separators=(",", ":")).encode()
    manifest = dump({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": describe(CHART_CONFIG, config),
        "layers": [describe(CHART_LAYER, packed)],
        "annotations": {
            "org.opencontainers.image.created": created,
            "org.opencontainers.image.description": about["description"],
            "org.opencontainers.image.title": about["name"],
            "org.opencontainers.image.version": about["version"],
        },
    })
    return packed, manifest, [config, packed, manifest]
