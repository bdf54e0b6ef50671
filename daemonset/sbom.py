"""Prints the components of the binary as a CycloneDX or SPDX document (JSON); the same sources give the same text.

    sbom.py --target TRIPLE [--spdx CREATED]

CREATED is the time of an SPDX document, as 2026-01-31T12:00:00Z; CycloneDX needs none.

The crates are those that cargo links into the program on that target (no build or test dependencies). Their checksums come
from Cargo.lock.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def metadata(target):
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def linked(resolve):
    """Returns the ids of the crates that are linked into the program, each with the ids of its direct dependencies."""
    nodes = {node["id"]: node for node in resolve["nodes"]}
    found, open_ids = {}, [resolve["root"]]
    while open_ids:
        crate = open_ids.pop()
        if crate in found:
            continue
        normal = [dep["pkg"] for dep in nodes[crate]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        found[crate] = normal
        open_ids += normal
    return found


def license_of(package):
    return (package.get("license") or "").replace("/", " OR ")


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def cyclonedx(target, root, crates, packages, checksums):
    def component(crate):
        package = packages[crate]
        name, version = package["name"], package["version"]
        entry = {"type": "library", "bom-ref": purl(package), "name": name, "version": version, "purl": purl(package)}
        if license_of(package):
            entry["licenses"] = [{"expression": license_of(package)}]
        if crate in checksums:
            entry["hashes"] = [{"alg": "SHA-256", "content": checksums[crate]}]
        return entry

    reference = lambda crate: purl(packages[crate])
    needs = [{"ref": reference(crate), "dependsOn": sorted(map(reference, crates[crate]))} for crate in crates]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {**component(root), "type": "application"},
            "properties": [{"name": "target", "value": target}],
        },
        "components": sorted((component(crate) for crate in crates if crate != root), key=lambda e: e["bom-ref"]),
        "dependencies": sorted(needs, key=lambda need: need["ref"]),
    }


def spdx(target, created, root, crates, packages, checksums):
    # An identifier consists of letters, digits, dots and hyphens.
    identify = lambda crate: "SPDXRef-" + re.sub("[^A-Za-z0-9.]+", "-", f"{packages[crate]['name']}-{packages[crate]['version']}")

    def package(crate):
        known = packages[crate]
        entry = {
            "SPDXID": identify(crate),
            "name": known["name"],
            "versionInfo": known["version"],
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": license_of(known) or "NOASSERTION",
            "copyrightText": "NOASSERTION",
            "externalRefs": [
                {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl(known)},
            ],
        }
        if crate in checksums:
            entry["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksums[crate]}]
        return entry

    entries = sorted(map(package, crates), key=lambda entry: entry["SPDXID"])
    relation = lambda one, kind, other: {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
    needs = [relation(identify(crate), "DEPENDS_ON", identify(other)) for crate in crates for other in set(crates[crate])]
    name = f"inplace-{packages[root]['version']}-{target}"
    # The namespace is to be unique: the digest differs when a component does.
    unique = hashlib.sha256(json.dumps([target, created, entries], sort_keys=True).encode()).hexdigest()
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://inplace.dev/spdx/{name}-{unique}",
        "creationInfo": {"created": created, "creators": ["Tool: inplace-sbom.py"]},
        "packages": entries,
        "relationships": [
            relation("SPDXRef-DOCUMENT", "DESCRIBES", identify(root)),
            *sorted(needs, key=lambda need: (need["spdxElementId"], need["relatedSpdxElement"])),
        ],
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--spdx", metavar="CREATED")
    args = parser.parse_args()
    data = metadata(args.target)
    with open(os.path.join(ROOT, "Cargo.lock"), "rb") as file:
        locked = tomllib.load(file)["package"]
    locked = {(p["name"], p["version"]): p["checksum"] for p in locked if "checksum" in p}
    packages = {package["id"]: package for package in data["packages"]}
    named = {crate: (package["name"], package["version"]) for crate, package in packages.items()}
    checksums = {crate: locked[name] for crate, name in named.items() if name in locked}
    parts = data["resolve"]["root"], linked(data["resolve"]), packages, checksums
    document = spdx(args.target, args.spdx, *parts) if args.spdx else cyclonedx(args.target, *parts)
    json.dump(document, sys.stdout, indent=1, sort_keys=True)
    print()


main()
