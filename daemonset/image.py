"""Packs the static binary into an image, without a Docker engine; the same input gives the same digest.

    image.py OUT.tar BINARY --version 0.1.0 [--arch amd64|arm64] [--revision COMMIT] [--certificates FILE] [--sbom FILE]

OUT.tar is an OCI archive; the digest of the image is printed. The image contains /inplace, /sbom.cdx.json (the list of its
components), and the certificates of public authorities for hooks that use TLS on the internet. It has no shell, no other file, and
no user but root.

FILE holds trusted certificates (default: those of this machine). Only those that authorities.txt, beside this file, lists are
packed: a cluster must not trust other authorities of this machine, for example that of a proxy.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import ssl
import sys
import tarfile

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
# The values of e_machine in an ELF header.
MACHINES = {"amd64": 62, "arm64": 183}
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def describe(kind, data, **more):
    return {"mediaType": kind, "digest": digest(data), "size": len(data), **more}


def dump(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def tar(files):
    """Returns a tar of {path: (content or None for a folder, mode)} that does not depend on the machine or the time."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, (content, mode) in files.items():
            info = tarfile.TarInfo(path)
            info.mode = mode
            if content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content or b""))
    return buffer.getvalue()


def public(bundle):
    """Filters a PEM bundle by authorities.txt. Returns the listed certificates, sorted, their number, the number of others in the
    bundle, and the number of authorities in the list."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "authorities.txt"), encoding="utf-8") as file:
        known = {line.split()[0] for line in file if not line.startswith("#")}
    found = re.findall("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", bundle, re.DOTALL)
    prints = {hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest(): pem for pem in found}
    taken = [prints[name] for name in sorted(prints.keys() & known)]
    return "".join(pem + "\n" for pem in taken).encode(), len(taken), len(prints) - len(taken), len(known)


def image(binary, certificates, sbom, arch, version, revision):
    """Returns the manifest of the image and all its blobs, the manifest included."""
    layers = [
        # The layer that rarely changes comes first.
        tar({
            "etc": (None, 0o755),
            "etc/ssl": (None, 0o755),
            "etc/ssl/certs": (None, 0o755),
            "etc/ssl/certs/ca-certificates.crt": (certificates, 0o644),
        }),
        tar({"inplace": (binary, 0o755)} | ({"sbom.cdx.json": (sbom, 0o644)} if sbom else {})),
    ]
    packed = [gzip.compress(layer, compresslevel=9, mtime=0) for layer in layers]
    about = labels(version, revision)
    config = dump({
        "architecture": arch,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {"User": "0", "Entrypoint": ["/inplace"], "WorkingDir": "/", "Labels": about},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
    })
    manifest = dump({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": describe(CONFIG, config),
        "layers": [describe(LAYER, layer) for layer in packed],
        "annotations": about,
    })
    return manifest, [config, manifest, *packed]


def labels(version, revision):
    """Returns the labels of an image, which are also the annotations of its manifest and of an index."""
    known = {
        "org.opencontainers.image.title": "inplace",
        "org.opencontainers.image.description": "Restart or update one container of a running pod, on its node",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": version,
    }
    return known | ({"org.opencontainers.image.revision": revision} if revision else {})


def in_index(manifest, arch):
    """Returns the descriptor of an image in an index."""
    return describe(MANIFEST, manifest, platform={"architecture": arch, "os": "linux"})


def layout(manifests, blobs):
    """Returns the archive of an OCI layout with these entry points, which are descriptors, and these blobs."""
    index = dump({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
    files = {"oci-layout": (b'{"imageLayoutVersion":"1.0.0"}', 0o644), "index.json": (index, 0o644)}
    files |= {"blobs": (None, 0o755), "blobs/sha256": (None, 0o755)}
    files |= {"blobs/sha256/" + digest(blob)[7:]: (blob, 0o644) for blob in blobs}
    return tar(files)


def program(path, arch):
    """Reads a binary. Ends the process if it is for another architecture."""
    with open(path, "rb") as file:
        binary = file.read()
    if binary[:4] != b"\x7fELF" or int.from_bytes(binary[18:20], "little") != MACHINES[arch]:
        sys.exit(f"image.py: {path} is no program for {arch}")
    return binary


def trusted(path):
    """Reads the certificates for an image, and reports on standard error how many there are."""
    with open(path, encoding="utf-8", errors="replace") as file:
        certificates, taken, others, known = public(file.read())
    print(f"image.py: {taken} of {known} public authorities are in the image, {others} others of {path} are not", file=sys.stderr)
    return certificates


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("binary")
    parser.add_argument("--version", required=True)
    parser.add_argument("--arch", choices=MACHINES, default="amd64")
    parser.add_argument("--revision", default="")
    parser.add_argument("--certificates", default=CERTIFICATES)
    parser.add_argument("--sbom")
    args = parser.parse_args()
    binary = program(args.binary, args.arch)
    certificates = trusted(args.certificates)
    sbom = None
    if args.sbom:
        with open(args.sbom, "rb") as file:
            sbom = file.read()
    manifest, blobs = image(binary, certificates, sbom, args.arch, args.version, args.revision)
    with open(args.out, "wb") as file:
        file.write(layout([in_index(manifest, args.arch)], blobs))
    print(digest(manifest))


if __name__ == "__main__":
    main()
