"""Prints the components of the binary as a CycloneDX document (JSON); the same sources give the same text.

    sbom.py --target TRIPLE

The crates are those that cargo links into the program on that target (no build or test dependencies). Their checksums come
from Cargo.lock.
"""

import argparse
import json
import os
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


def component(package, checksums):
    name, version = package["name"], package["version"]
    purl = f"pkg:cargo/{name}@{version}"
    entry = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if package.get("license"):
        entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if (name, version) in checksums:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksums[name, version]}]
    return entry


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    target = parser.parse_args().target
    data = metadata(target)
    with open(os.path.join(ROOT, "Cargo.lock"), "rb") as file:
        locked = tomllib.load(file)["package"]
    checksums = {(p["name"], p["version"]): p["checksum"] for p in locked if "checksum" in p}
    packages = {package["id"]: package for package in data["packages"]}
    crates = linked(data["resolve"])
    entries = {crate: component(packages[crate], checksums) for crate in crates}
    own = entries[data["resolve"]["root"]]
    reference = lambda crate: entries[crate]["bom-ref"]
    needs = [{"ref": reference(crate), "dependsOn": sorted(map(reference, crates[crate]))} for crate in crates]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {**own, "type": "application"},
            "properties": [{"name": "target", "value": target}],
        },
        "components": sorted((e for e in entries.values() if e is not own), key=lambda e: e["bom-ref"]),
        "dependencies": sorted(needs, key=lambda need: need["ref"]),
    }
    json.dump(document, sys.stdout, indent=1, sort_keys=True)
    print()


main()
