#!/usr/bin/env python3
"""Checks the project's English against the word list in CONTRIBUTING.md.

    tools/check_words.py             all files of the repository
    tools/check_words.py FILE...     these files

Searches documents, and comments and string literals of the sources, for the phrases
that the section "Words" says to avoid. Also checks that the subjects of commits are
at most 72 characters long: those that origin/main lacks, or else the last one.
Prints a line for each problem; exit status 1 if there are any. Needs Python 3.9.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIST = ROOT / "CONTRIBUTING.md"
SUBJECT_LENGTH = 72
C_LIKE = (".cc", ".h", ".cu", ".cuh", ".proto")
WHOLE = (".md",)
# Not written by hand.
SKIPPED = re.compile(r"^bench/results/|_pb2\.pyi?$|/unicode_table\.cc$")

# The parts of a source that are checked, in the named group.
RAW = r'R"(?P<raw>[^()\s\\]*)\(.*?\)(?P=raw)"'
C_PART = re.compile(
    r'(?P<text>//[^\n]*|/\*.*?\*/|' + RAW + r'|"(?:[^"\\\n]|\\.)*")'
    r"|'(?:[^'\\\n]|\\.)'", re.S)
PYTHON_PART = re.compile(
    r'(?P<text>#[^\n]*|"""(?:[^\\]|\\.)*?"""|\'\'\'(?:[^\\]|\\.)*?\'\'\''
    r'|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\')', re.S)


def rows(document):
    """The pairs (avoid, write) of the table in the section "Words"."""
    section = document.partition("\n## Words\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(.+)` \| (.+) \|$", section, re.M)


def phrase_pattern(phrase):
    """Whole words, any line break or comment marker between them. A phrase in lower
    case matches capitals, too; names with _ or - are left alone."""
    words = r"(?:\s|//|#|\")+".join(re.escape(word) for word in phrase.split())
    flags = re.I if phrase == phrase.lower() else 0
    return re.compile(r"(?<![\w-])" + words + r"(?![\w-])", flags)


def patterns(document):
    """(word, pattern, write) for each phrase. `word` is its longest one: a fast test
    for files without the phrase."""
    return [(max(phrase.lower().split(), key=len), phrase_pattern(phrase), write)
            for avoid, write in rows(document) for phrase in avoid.split(", ")]


def checked_text(name, text):
    """`text` with spaces for what is not checked, so that offsets stay."""
    if name == "CONTRIBUTING.md":
        return re.sub(r"^\| `.*$", lambda row: " " * len(row[0]), text, flags=re.M)
    if name.endswith(C_LIKE):
        part = C_PART
    elif name.endswith(".py"):
        part = PYTHON_PART
    else:
        return text
    checked = ["\0" if c != "\n" else c for c in text]
    for match in part.finditer(text):
        if match["text"] is not None:
            checked[match.start():match.end()] = match[0]
        # White space around it joins comments of several lines.
        line = text.rfind("\n", 0, match.start()) + 1
        if not text[line:match.start()].strip():
            checked[line:match.start()] = text[line:match.start()]
    return "".join(checked)


def problems(name, text, avoided):
    lower = text.lower()
    suspects = [(pattern, write) for word, pattern, write in avoided
                if word in lower and pattern.search(text)]
    if not suspects:
        return []
    checked = checked_text(name, text)
    found = []
    for pattern, write in suspects:
        for match in pattern.finditer(checked):
            line = checked.count("\n", 0, match.start()) + 1
            said = " ".join(match[0].split())
            found.append((line, f"{name}:{line}: \"{said}\"; write {write}"))
    return [message for _, message in sorted(found)]


def files():
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
        capture_output=True, text=True).stdout.splitlines()
    return [name for name in names
            if (name.endswith(C_LIKE + WHOLE + (".py",)) or name == "dev")
            and not SKIPPED.search(name) and (ROOT / name).is_file()]


def subject_problems(subjects):
    return [f"commit subject of {len(s)} characters; at most {SUBJECT_LENGTH}: {s}"
            for s in subjects if len(s) > SUBJECT_LENGTH]


def subjects():
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True,
                              text=True)
    if git("rev-parse", "--verify", "-q", "origin/main").returncode == 0:
        commits = ["origin/main..HEAD"]
    else:
        commits = ["-1"]
    return git("log", "--no-merges", "--format=%s", *commits).stdout.splitlines()


def main(arguments):
    avoided = patterns(LIST.read_text(encoding="utf-8"))
    if not avoided:
        print(f"{LIST.name}: no table in the section \"Words\"")
        return 1
    names = arguments or files()
    found = [] if arguments else subject_problems(subjects())
    for name in names:
        text = (ROOT / name).read_text(encoding="utf-8")
        found += problems(name, text, avoided)
    for message in found:
        print(message)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
