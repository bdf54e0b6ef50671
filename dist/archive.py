"""Archives that do not depend on the machine: root owns every entry, all entries have one time, and their order is that of the
input."""

import gzip
import io
import tarfile


def tar(entries, time):
    """Returns a tar of {path: (content, mode)}; a content of None is a folder, a text is the target of a symbolic link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, (content, mode) in entries.items():
            info = tarfile.TarInfo(path)
            info.mode, info.mtime, info.uname, info.gname = mode, time, "root", "root"
            if content is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content if isinstance(content, bytes) else b""))
    return buffer.getvalue()


def compress(data):
    return gzip.compress(data, compresslevel=9, mtime=0)


def with_folders(entries):
    """Returns the entries in the order of their paths, each after the folders that contain it."""
    folders = {path[:end] for path in entries for end, letter in enumerate(path) if letter == "/"} - {"."}
    return dict(sorted((entries | {folder: (None, 0o755) for folder in folders - set(entries)}).items()))
