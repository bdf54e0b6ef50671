"""The Debian package: the program, its manual pages and completions, and the systemd unit of the standalone agent.

A package is an `ar` archive of two tar archives, which Python's standard library writes: cargo-deb would be one more tool to install
on the build machine, and its archives contain times of that machine's files."""

import hashlib
import os

import archive

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "debian")
COMPLETIONS = {
    "inplace.bash": "usr/share/bash-completion/completions/inplace",
    "_inplace": "usr/share/zsh/vendor-completions/_inplace",
    "inplace.fish": "usr/share/fish/vendor_completions.d/inplace.fish",
}


def read(name):
    with open(os.path.join(HERE, name), "rb") as file:
        return file.read()


def contents(binary, licence, completions, pages):
    """Returns the installed files, as entries of an archive."""
    entries = {
        "usr/bin/inplace": (binary, 0o755),
        "usr/bin/kubectl-inplace": ("inplace", 0o777),
        "usr/lib/systemd/system/inplace-agent.service": (read("inplace-agent.service"), 0o644),
        "etc/default/inplace-agent": (read("inplace-agent.default"), 0o644),
        "etc/inplace/pods": (None, 0o755),
        "usr/share/doc/inplace/copyright": (licence, 0o644),
    }
    entries |= {COMPLETIONS[name]: (script, 0o644) for name, script in completions.items()}
    entries |= {f"usr/share/man/man1/{name}.gz": (archive.compress(page), 0o644) for name, page in pages.items()}
    return entries


def control(entries, version, arch):
    """Returns the files that describe the package, as entries of an archive."""
    files = {path: content for path, (content, _) in entries.items() if isinstance(content, bytes)}
    fields = read("control").decode().format(
        # Debian sorts `~` before the end of a version: a pre-release is older than its release.
        version=version.replace("-", "~"), arch=arch, size=(sum(map(len, files.values())) + 1023) // 1024)
    sums = "".join(f"{hashlib.md5(content).hexdigest()}  {path}\n" for path, content in sorted(files.items()))
    described = {
        "control": (fields.encode(), 0o644),
        "conffiles": (b"/etc/default/inplace-agent\n", 0o644),
        "md5sums": (sums.encode(), 0o644),
    }
    return described | {name: (read(name), 0o755) for name in ["postinst", "prerm", "postrm"]}


def package(binary, licence, completions, pages, version, arch, time):
    """Returns the package."""
    entries = contents(binary, licence, completions, pages)
    tar = lambda files: archive.compress(archive.tar(archive.with_folders({f"./{path}": file for path, file in files.items()}), time))
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": tar(control(entries, version, arch)),
        "data.tar.gz": tar(entries),
    }
    packed = b"!<arch>\n"
    for name, content in members.items():
        packed += f"{name:<16}{time:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content + b"\n" * (len(content) % 2)
    return packed
