"""Plants bugs in a copy of the tree: applies patches whose hunks are found by their lines alone."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

# What each planted bug asks, in the copy only.
SWITCH = """
/// Whether this bug is switched on.
pub fn planted(bug: &str) -> bool {
    static ON: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("TOMBOLO_PLANTED").ok());
    ON.as_deref() == Some(bug)
}
"""


class Misfit(Exception):
    """A patch that is not right, or does not fit its file in exactly one place."""


@dataclass(frozen=True)
class Bug:
    """A bug, and the test that must fail with it: of a suite, or a case that a module of the conformance suite runs."""

    name: str
    package: str
    suite: str
    module: str | None
    test: str
    may_hang: bool

    @staticmethod
    def read(patch):
        """Reads the head of a patch, `Caught by: PACKAGE SUITE TEST` or `Caught by: MODULE CASE`."""
        text = patch.read_text()
        caught = re.search(r"^Caught by( hanging)?: (.*)$", text, re.MULTILINE)
        words = caught[2].split() if caught else []
        if f'mem::planted("{patch.stem}")' not in "".join(re.findall(r"^\+.*$", text, re.MULTILINE)):
            raise Misfit("the patch has no switch of its own name")
        if len(words) == 3:
            return Bug(patch.stem, words[0], words[1], None, words[2], bool(caught[1]))
        if len(words) == 2:
            return Bug(patch.stem, "tombolo-conformance", "it", words[0], words[1], bool(caught[1]))
        raise Misfit("the patch does not say what it is caught by")


def hunks(lines):
    """Yields the file and the lines of each hunk."""
    file, hunk = None, None
    for line in lines:
        if line.startswith(("diff --git ", "--- a/", "+++ b/", "@@")):
            if hunk:
                yield file, hunk
            hunk = [] if line.startswith("@@") else None
            if line.startswith("+++ b/"):
                file = line.removeprefix("+++ b/")
        elif hunk is not None:
            hunk.append(line or " ")
    if hunk:
        yield file, hunk


def places(text, wanted):
    """Returns where the wanted lines stand in a row."""
    return [start for start in range(len(text) - len(wanted) + 1) if text[start : start + len(wanted)] == wanted]


class Copy:
    """A copy of the tree in which bugs are planted. Files that have not changed since it was made last stay as they are, so that
    Cargo builds again only what has."""

    def __init__(self, tree):
        self.tree = tree
        self.changed = {}

    def lines(self, file):
        """Returns the lines of a file as they are planted by now, to be changed in place."""
        if file not in self.changed:
            self.changed[file] = (self.tree / file).read_text().split("\n")
        return self.changed[file]

    def plant(self, patch):
        """Applies a patch."""
        for file, hunk in hunks(patch.read_text().rstrip("\n").split("\n")):
            before = [line[1:] for line in hunk if line[0] != "+"]
            after = [line[1:] for line in hunk if line[0] != "-"]
            try:
                text = self.lines(file)
            except OSError as error:
                raise Misfit(str(error)) from error
            found = places(text, before)
            if not before or len(found) != 1:
                raise Misfit("\n".join([f"{file}: these lines stand in {len(found)} places:", *before]))
            text[found[0] : found[0] + len(before)] = after

    def plant_switch(self):
        """Adds what the planted bugs ask whether they are switched on."""
        self.lines("mem/src/lib.rs").extend(SWITCH.split("\n"))
        # Rooms that map no memory of others do without it otherwise.
        for manifest in ("cli/Cargo.toml", "host/service/Cargo.toml", "host/vmm/Cargo.toml"):
            lines = self.lines(manifest)
            if not any(line.startswith("tombolo-mem") for line in lines):
                lines.insert(lines.index("tombolo-sys.workspace = true"), "tombolo-mem.workspace = true")

    def write(self, folder):
        """Makes `folder` the copy."""
        listed = ["git", "-C", self.tree, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, check=True, stdout=subprocess.PIPE, text=True).stdout.split("\0")
        names = {name for name in names if name and (self.tree / name).is_file()}
        for name in names:
            content = "\n".join(self.changed[name]).encode() if name in self.changed else (self.tree / name).read_bytes()
            path = folder / name
            if not path.is_file() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            shutil.copymode(self.tree / name, path)
        for path in folder.rglob("*"):
            if path.is_file() and str(path.relative_to(folder)) not in names:
                path.unlink()


def take_over_dependencies(source, target):
    """Copies what the tree's own tests have built of other projects: Cargo knows it by name, options and time, and builds what is
    missing."""
    if target.exists() or not (source / ".fingerprint").exists():
        return
    for part in (".fingerprint", "build", "deps"):
        ours = shutil.ignore_patterns("*tombolo*", "it-*")
        shutil.copytree(source / part, target / part, ignore=ours, copy_function=shutil.copy2)
