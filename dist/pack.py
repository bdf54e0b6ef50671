"""Packs binaries that are built into everything that a release has; the same input gives the same bytes.

    pack.py OUT --version V --time SECONDS --url URL --share FOLDER --binary ARCH=FILE [--binary ARCH=FILE ...]
            [--revision COMMIT] [--certificates FILE]

OUT is an empty folder. SECONDS since 1970 is the time of all files. URL is the address of the folder from which users download. FOLDER
has `completions` and `man`, from share.sh.
"""

import argparse
import datetime
import hashlib
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "daemonset")]

import archive  # noqa: E402
import artefact  # noqa: E402
import deb  # noqa: E402
import image  # noqa: E402

TRIPLES = {"amd64": "x86_64-unknown-linux-musl", "arm64": "aarch64-unknown-linux-musl"}


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def folder(*path):
    """Returns {path below the folder: content}, in the order of the paths."""
    top = os.path.join(*path)
    files = [os.path.join(at, name) for at, _, names in os.walk(top) for name in names]
    return {os.path.relpath(file, top): read(file) for file in sorted(files)}


def sbom(arch, *form):
    command = [sys.executable, "-B", os.path.join(ROOT, "daemonset/sbom.py"), "--target", TRIPLES[arch], *form]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def tarballs(binaries, release):
    """Returns an archive for each architecture, and the manifest for krew that has their checksums."""
    entries = {f"completions/{name}": script for name, script in release.completions.items()}
    entries |= {f"man/man1/{name}": page for name, page in release.pages.items()}
    entries = {path: (content, 0o644) for path, content in (entries | {"LICENSE": release.licence}).items()}
    packed, platforms = {}, ""
    for arch, binary in binaries.items():
        name = f"inplace-{release.version}-linux-{arch}"
        all_entries = {f"{name}/{path}": entry for path, entry in (entries | {"inplace": (binary, 0o755)}).items()}
        content = archive.compress(archive.tar(archive.with_folders(all_entries), release.time))
        packed[name + ".tar.gz"] = content
        platforms += read(HERE, "krew-platform.yaml").decode().format(
            arch=arch, url=release.url, name=name, sha256=hashlib.sha256(content).hexdigest())
    plugin = read(HERE, "krew.yaml").decode().format(version=release.version, url=release.url) + platforms
    return packed | {"inplace.yaml": plugin.encode()}


def images(binaries, release):
    """Returns the archive with the image index and its lists of components, and these lists as files."""
    certificates = image.trusted(release.certificates)
    manifests, blobs, documents = {}, {}, {}
    for arch, binary in binaries.items():
        manifest, parts = image.image(binary, certificates, sbom(arch), arch, release.version, release.revision)
        manifests[arch] = manifest
        blobs |= {image.digest(part): part for part in parts}
        documents[f"inplace-{release.version}-linux-{arch}.spdx.json"] = sbom(arch, "--spdx", release.created)
    index = artefact.index(manifests, release.version, release.revision)
    referrers, tag, more = artefact.attached(index, documents, release.created)
    blobs |= {image.digest(part): part for part in [index, *more]}
    entries = [artefact.entry(index, image.INDEX, release.version), artefact.entry(referrers, image.INDEX, tag)]
    return {f"inplace-{release.version}-image.tar": image.layout(entries, list(blobs.values()))} | documents


def charts(release):
    """Returns the chart, as Helm packs it, and the archive with its artefact."""
    packed, manifest, blobs = artefact.chart(folder(ROOT, "daemonset/chart"), release.created, release.time)
    entries = [artefact.entry(manifest, image.MANIFEST, release.version)]
    return {f"inplace-{release.version}.tgz": packed, f"inplace-{release.version}-chart.tar": image.layout(entries, blobs)}


def manifests(release):
    """Returns the archive with what `kubectl apply -k` takes, in the folder `daemonset`, as in the sources."""
    name = f"inplace-{release.version}-manifests"
    files = {f"daemonset/{path}": content for path, content in folder(ROOT, "daemonset").items()
             if os.sep in path and not path.startswith(("chart/", "__pycache__/"))}
    entries = {f"{name}/{path}": (content, 0o644) for path, content in (files | {"LICENSE": release.licence}).items()}
    return {name + ".tar.gz": archive.compress(archive.tar(archive.with_folders(entries), release.time))}


def debs(binaries, release):
    return {
        f"inplace_{release.version.replace('-', '~')}_{arch}.deb": deb.package(
            binary, release.licence, release.completions, release.pages, release.version, arch, release.time)
        for arch, binary in binaries.items()
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--version", required=True)
    parser.add_argument("--time", required=True, type=int)
    parser.add_argument("--url", required=True)
    parser.add_argument("--share", required=True)
    parser.add_argument("--binary", required=True, action="append")
    parser.add_argument("--revision", default="")
    parser.add_argument("--certificates", default=image.CERTIFICATES)
    release = parser.parse_args()
    release.created = datetime.datetime.fromtimestamp(release.time, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    release.completions = folder(release.share, "completions")
    release.pages = folder(release.share, "man")
    release.licence = read(ROOT, "LICENSE")
    paths = dict(sorted(binary.split("=", 1) for binary in release.binary))
    binaries = {arch: image.program(path, arch) for arch, path in paths.items()}
    files = tarballs(binaries, release) | images(binaries, release) | charts(release) | debs(binaries, release)
    files |= manifests(release)
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(files.items()))
    for name, content in (files | {"SHA256SUMS": sums.encode()}).items():
        with open(os.path.join(release.out, name), "wb") as file:
            file.write(content)


main()
