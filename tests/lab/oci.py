"""Writes small OCI image archives, the same bytes for the same input.

    oci.py apps OUTDIR BUSYBOX SERVE   every app image
    oci.py python OUTDIR BUSYBOX PYTHON   images with this machine's Python
    oci.py pause OUTDIR BINARY         the sandbox image
    oci.py big OUTDIR BUSYBOX MB       an image with a layer that does not compress
    oci.py servers OUTDIR BUSYBOX ROOT nginx and HAProxy, from the folder into which their packages were unpacked

An archive each; prints "name digest" for each.
"""

import gzip
import hashlib
import io
import json
import os
import platform
import random
import subprocess
import sys
import tarfile

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
ALIEN = "arm64" if ARCH != "arm64" else "amd64"
APPLETS = """cat chmod cp cut date dd df echo env false free grep head hostname httpd id ip ipcrm ipcs kill ls mkdir
mount nc nslookup ps rm sed seq sh sleep stat sync tail test touch true wc wget""".split()
APP = b"""#!/bin/sh
# Serves /www on $PORT when it is set, and goes on until SIGTERM.
trap 'kill $! 2>/dev/null; exit 0' TERM
[ -z "$PORT" ] || httpd -p "$PORT" -h /www
while :; do sleep 3600 & wait $!; done
"""
# What the examples import, and `site`, which the interpreter imports itself.
IMPORTED = "array, fcntl, mmap, os, selectors, signal, site, socket, struct, sys, time"

PYTHON = b"""#!/bin/sh
# As much of `python -m http.server PORT` as a test needs.
trap 'kill $! 2>/dev/null; exit 0' TERM
httpd -f -p "$3" -h /www & wait $!
"""


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def tar(entries, out=None):
    """Returns a tar of (path, data | None for a folder | str for a link, mode) that does not depend on the machine or the time."""
    buffer = out or io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, data, mode in entries:
            info = tarfile.TarInfo(path)
            info.mode = mode
            if data is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(data, str):
                info.type, info.linkname = tarfile.SYMTYPE, data
            else:
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data) if isinstance(data, bytes) else None)
    return None if out else buffer.getvalue()


def layer(entries, level=6):
    """Returns a layer: its compressed bytes and the digest of the uncompressed bytes."""
    plain = tar(entries)
    return gzip.compress(plain, compresslevel=level, mtime=0), digest(plain)


class Image:
    """An image manifest with its blobs."""

    def __init__(self, layers, config, arch=ARCH):
        body = {
            "architecture": arch,
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {"Env": ["PATH=/bin:/usr/bin"], **config},
            "rootfs": {"type": "layers", "diff_ids": [diff for _, diff in layers]},
        }
        raw = json.dumps(body).encode()
        self.blobs = {digest(raw): raw, **{digest(data): data for data, _ in layers}}
        manifest = json.dumps({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": describe(CONFIG, raw),
            "layers": [describe(LAYER, data) for data, _ in layers],
        }).encode()
        self.blobs[digest(manifest)] = manifest
        self.top = describe(MANIFEST, manifest)
        self.platform = {"architecture": arch, "os": "linux"}


class Index:
    """An image index: one name for images of several architectures, as most public images have."""

    def __init__(self, images):
        raw = json.dumps({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [{**image.top, "platform": image.platform} for image in images],
        }).encode()
        self.blobs = {digest(raw): raw}
        for image in images:
            self.blobs.update(image.blobs)
        self.top = describe(INDEX, raw)


def describe(kind, data):
    return {"mediaType": kind, "digest": digest(data), "size": len(data)}


def write(out, name, image):
    """Writes OUT/NAME-TAG.tar; the image name in the archive is localhost/NAME:TAG."""
    tag = name.split(":")[1]
    notes = {"io.containerd.image.name": "localhost/" + name, "org.opencontainers.image.ref.name": tag}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [{**image.top, "annotations": notes}]}
    entries = [("oci-layout", b'{"imageLayoutVersion":"1.0.0"}', 0o644), ("index.json", json.dumps(index).encode(), 0o644)]
    entries += [("blobs", None, 0o755), ("blobs/sha256", None, 0o755)]
    entries += [("blobs/sha256/" + key[7:], data, 0o644) for key, data in sorted(image.blobs.items())]
    with open(os.path.join(out, name.replace(":", "-") + ".tar"), "wb") as file:
        tar(entries, file)
    print(name, image.top["digest"])


def read(path):
    with open(path, "rb") as file:
        return file.read()


def base(busybox):
    entries = [(folder, None, 0o755) for folder in ("bin", "etc", "www")] + [("tmp", None, 0o1777)]
    entries += [("bin/busybox", read(busybox), 0o755)] + [("bin/" + applet, "busybox", 0o777) for applet in APPLETS]
    return layer(entries + [("bin/app", APP, 0o755), ("www/index.html", b"up\n", 0o644)])


def version(text):
    data = text.encode() + b"\n"
    return layer([("etc/version", data, 0o644), ("www/version", data, 0o644)])


def shell(script):
    return {"Entrypoint": ["/bin/sh", "-c", script]}


def apps(out, busybox, serve):
    ground = base(busybox)
    served = layer([("bin/serve", read(serve), 0o755)])
    first = [ground, version("v1")]
    run = {"Entrypoint": ["/bin/app"]}
    for tag in ("v1", "v2", "v3"):
        write(out, "app:" + tag, Image([ground, served, version(tag)], run))
    alien = Image(first, run, ALIEN)
    write(out, "app:alien", alien)
    write(out, "app:multi", Index([Image([ground, version("multi")], run), alien]))
    write(out, "app:crash", Image(first, shell("echo 'app: no configuration, cannot start' >&2; exit 3")))
    write(out, "app:late", Image(first, shell("echo 'app: starting'; sleep 2; echo 'app: lost its database' >&2; exit 1")))
    write(out, "app:noentry", Image(first, {"Entrypoint": ["/bin/not-there"]}))
    write(out, "app:stubborn", Image(first, shell("trap '' TERM; while :; do sleep 3600; done")))
    write(out, "app:nocmd", Image(first, {}))
    write(out, "app:user", Image(first, {**run, "User": "65532"}))
    published(out, ground)


def published(out, ground):
    """Writes substitutes for the images that the published manifests of workloads name."""
    for tag in ("3.5", "latest"):
        write(out, "python:" + tag, Image([ground, layer([("bin/python", PYTHON, 0o755)]), version(tag)], {}))
    for tag in ("v1", "v2"):
        write(out, "main:" + tag, Image([ground, layer([("main", "bin/app", 0o777)]), version(tag)], {}))
    served = layer([("www/index.html", b'{"name":"bryan","male":"yes","age":45}\n', 0o644)])
    serve = {"Env": ["PATH=/bin:/usr/bin", "PORT=9091"], "Entrypoint": ["/bin/app"]}
    write(out, "canary-hook:test", Image([ground, served, version("test")], serve))


def python(out, busybox, program):
    """Writes images with a Python, of which they have as much as the examples import."""
    loaded = f"import {IMPORTED}\nfor module in list(sys.modules.values()): print(getattr(module, '__file__', None) or '')"
    modules = set(output(program, "-I", "-S", "-c", loaded).split())
    libraries = {word for word in output("ldd", program, *(path for path in modules if path.endswith(".so"))).split() if word[0] == "/"}
    libraries = {path for path in libraries if ".so" in path and not path.endswith(":")} - modules
    files = [("usr/bin/python3", read(program), 0o755)]
    files += [(path[1:], read(path), 0o755) for path in sorted(modules | libraries)]
    ground, interpreter = base(busybox), layer(files)
    for tag in ("v1", "v2"):
        write(out, "python3:" + tag, Image([ground, interpreter, version(tag)], {"Entrypoint": ["python3"]}))


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def big(out, busybox, megabytes):
    noise = random.Random(megabytes)
    data = b"".join(noise.randbytes(1 << 20) for _ in range(megabytes))
    ballast = layer([("ballast", data, 0o644)], level=0)
    write(out, "big:v1", Image([base(busybox), version("v1"), ballast], {"Entrypoint": ["/bin/app"]}))


def program(root, name):
    """Returns the entries of a program of a package, its libraries and its loader; ROOT/NAME.libraries has their paths."""
    paths = {os.path.basename(path): path for path in read(os.path.join(root, name + ".libraries")).decode().split()}
    loader = next(library for library in sorted(paths) if library.startswith("ld-linux"))
    entries = [(folder, None, 0o755) for folder in ("lib", "lib64", "usr", "usr/bin")]
    entries += [("lib/" + library, read(path), 0o755) for library, path in sorted(paths.items())]
    # The loader of amd64 is in lib64, that of arm64 in lib.
    entries.append(("lib64/" + loader, "/lib/" + loader, 0o777))
    return entries + [("usr/bin/" + name, read(os.path.join(root, "usr/sbin", name)), 0o755)]


def servers(out, busybox, root):
    """Writes images like those on Docker Hub: the same folders, commands, stop signals and variables."""
    ground = base(busybox)
    folders = ["etc", "etc/nginx", "usr/share", "usr/share/nginx", "usr/share/nginx/html", "var", "var/log", "var/log/nginx"]
    nginx = layer(program(root, "nginx") + [(folder, None, 0o755) for folder in folders] + [
        ("etc/nginx/mime.types", read(os.path.join(root, "etc/nginx/mime.types")), 0o644),
        ("var/log/nginx/error.log", "/dev/stderr", 0o777),
    ])
    haproxy = layer(program(root, "haproxy") + [(folder, None, 0o755) for folder in ("usr/local", "usr/local/etc", "usr/local/etc/haproxy")])
    for tag in ("v1", "v2"):
        page = layer([("usr/share/nginx/html/index.html", tag.encode() + b"\n", 0o644)])
        config = {"Cmd": ["nginx", "-g", "daemon off;"], "StopSignal": "SIGQUIT"}
        write(out, "nginx:" + tag, Image([ground, nginx, version(tag), page], config))
        config = {
            "Env": ["PATH=/bin:/usr/bin", "HAPROXY_VERSION=" + tag],
            "Cmd": ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"],
            "StopSignal": "SIGUSR1",
        }
        write(out, "haproxy:" + tag, Image([ground, haproxy, version(tag)], config))


def main():
    what, out, *rest = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    if what == "apps":
        apps(out, *rest)
    elif what == "python":
        python(out, *rest)
    elif what == "pause":
        write(out, "pause:1", Image([layer([("pause", read(rest[0]), 0o755), ("inplace", "pause", 0o777)])], {"Entrypoint": ["/pause"]}))
    elif what == "big":
        big(out, rest[0], int(rest[1]))
    elif what == "servers":
        servers(out, *rest)
    else:
        sys.exit(__doc__)


main()
