"""Reads what llvm-cov exports in the format of lcov, and prints how many lines of each folder were executed.

Usage: coverage.py SRC LINES <export. The lines that were not executed are written to LINES. Lines of what only tests compile are
left out.
"""

import collections
import pathlib
import re
import sys

TEST_ITEM = re.compile(r"^( *)#\[cfg\(test\)\]")
TEST_MODULE = re.compile(r'#\[cfg\(test\)\]\s+(?:#\[path = "([^"]+)"\]\s+)?(?:pub\S* )?mod (\w+);')


def test_files(root: pathlib.Path) -> list[str]:
    """The files and folders, without `.rs`, of the modules that only tests compile."""
    found = []
    for file in root.rglob("*.rs"):
        below = file.parent if file.stem in ("mod", "lib", "main") else file.with_suffix("")
        for path, module in TEST_MODULE.findall(file.read_text(encoding="utf-8")):
            place = (file.parent / path).with_suffix("") if path else below / module
            found.append(str(place.resolve().relative_to(root)))
    return found


def test_lines(source: list[str]) -> set[int]:
    """The numbers of the lines of items that only tests compile."""
    found: set[int] = set()
    number = 0
    while number < len(source):
        attribute = TEST_ITEM.match(source[number])
        if attribute:
            start = number
            # An item ends with the first line that closes it at the same depth, or with a semicolon.
            ends = re.compile(rf"^{attribute.group(1)}(\}}|[^ #].*[;}}]$)")
            number += 1
            while number < len(source) and not ends.match(source[number]):
                number += 1
            found.update(range(start + 1, number + 2))
        number += 1
    return found


def main() -> None:
    root, listing = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    tests = test_files(root)
    counts: dict[str, dict[int, int]] = collections.defaultdict(dict)
    name = ""
    for line in sys.stdin:
        if line.startswith("SF:"):
            path = pathlib.Path(line[3:].strip())
            name = str(path.relative_to(root)) if path.is_relative_to(root) else ""
            if any(name == f"{test}.rs" or name.startswith(f"{test}/") for test in tests):
                name = ""
        elif line.startswith("DA:") and name:
            number, count = (int(part) for part in line[3:].split(",")[:2])
            counts[name][number] = max(count, counts[name].get(number, 0))
    folders: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    with listing.open("w", encoding="utf-8") as missed:
        for name, lines in sorted(counts.items()):
            source = (root / name).read_text(encoding="utf-8").splitlines()
            skipped = test_lines(source)
            folder = name.split("/")[0] if "/" in name else "(files)"
            for number, count in sorted(lines.items()):
                if number in skipped:
                    continue
                for total in (folders[folder], folders["all"]):
                    total[0] += count > 0
                    total[1] += 1
                if count == 0:
                    missed.write(f"src/{name}:{number}: {source[number - 1].strip()}\n")
    print("| folder | lines | executed |\n|---|--:|--:|")
    for folder, (executed, lines) in sorted(folders.items(), key=lambda entry: (entry[0] == "all", entry[0])):
        print(f"| `{folder}` | {lines} | {100 * executed / lines:.1f} % |")


if __name__ == "__main__":
    main()
