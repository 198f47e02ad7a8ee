#!/usr/bin/env python3
"""Writes docs/api.md, the API reference, from the comments of the protos.

    tools/api_reference.py            write it
    tools/api_reference.py --check    status 1 if the page is not what would be written

It reads the proto files as text and knows the part of the language that they use;
a line it does not know is an error. Needs Python 3.9 and nothing else.
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = ("inference.proto", "control.proto", "state.proto")
PAGE = ROOT / "docs/api.md"
INTRODUCTION = """\
# API reference

<!-- Written by tools/api_reference.py from the protos: change those. -->

The gRPC services of `recurve-server`. It also serves `grpc.health.v1`, gRPC
reflection, version 1alpha, so that tools need no files, and for routers
[`vllm.grpc.engine.VllmEngine`](routers.md#vllmgrpcenginevllmengine):

```sh
grpcurl -plaintext 127.0.0.1:50051 list
```

A field that is `optional` may be left out, and the server can tell; another that is
left out has its default: 0, false, empty. Clients: [Python](python.md), C++
([recurve_client.h](../client/lib/recurve_client.h)), or any made from the files below.
"""


def fail(path, number, why):
    raise SystemExit(f"{path.relative_to(ROOT)}:{number}: {why}")


def parse(path):
    """(the comment at the head of the file, [service, message or enum])

    Each is a dict with kind, name, comment and items; items of a message are fields
    and oneofs."""
    head, comment, found, stack = None, [], [], []
    statement = ""
    for number, raw in enumerate(path.read_text().splitlines(), 1):
        line = raw.strip()
        if line.startswith("//"):
            comment.append(line[2:].removeprefix(" "))
            continue
        if not line:
            comment = []
            continue
        if line.startswith("syntax"):
            head, comment = comment, []
            continue
        if re.fullmatch(r'(package|import) .+;|reserved [\d, to]+;', line):
            comment = []
            continue
        # A statement may span lines.
        statement = f"{statement} {line}".strip()
        if not statement.endswith(("{", "}", ";")):
            continue
        text, statement = statement, ""
        item = {"comment": comment, "line": number}
        comment = []
        if match := re.fullmatch(r"(service|message|enum|oneof) (\w+) \{(\})?", text):
            item |= {"kind": match[1], "name": match[2], "items": []}
            (stack[-1]["items"] if stack else found).append(item)
            if stack and match[1] != "oneof":
                fail(path, number, f"a {match[1]} inside another is not known here")
            if not match[3]:
                stack.append(item)
        elif text == "}":
            if not stack:
                fail(path, number, "one } too many")
            stack.pop()
        elif not stack:
            fail(path, number, f"not understood: {text}")
        elif match := re.fullmatch(
                r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);", text):
            item |= {"kind": "rpc", "name": match[1], "request": match[3],
                     "request_stream": bool(match[2]), "response": match[5],
                     "response_stream": bool(match[4])}
            stack[-1]["items"].append(item)
        elif match := re.fullmatch(
                r"(optional |repeated )?(map<\w+, \w+>|\w+) (\w+) = (\d+);", text):
            item |= {"kind": "field", "label": (match[1] or "").strip(), "type": match[2],
                     "name": match[3], "number": int(match[4])}
            stack[-1]["items"].append(item)
        elif (match := re.fullmatch(r"(\w+) = (\d+);", text)) and stack[-1]["kind"] == "enum":
            item |= {"kind": "value", "name": match[1], "number": int(match[2])}
            stack[-1]["items"].append(item)
        else:
            fail(path, number, f"not understood: {text}")
    if stack or statement:
        fail(path, number, "the file ends inside something")
    if head is None:
        fail(path, 1, "no syntax line")
    return head, found


def paragraphs(comment):
    """Comment as Markdown: indented lines are a code block."""
    lines, block = [], False
    for line in comment:
        indented = line.startswith("  ")
        if indented != block:
            lines += ["```text" if indented else "```", ""] if not indented else ["", "```text"]
            block = indented
        lines.append(line[2:] if indented else line)
    if block:
        lines.append("```")
    return "\n".join(lines).strip() + "\n" if lines else ""


def cell(comment):
    return " ".join(comment).replace("|", r"\|")


def anchor(name):
    return name.lower()


def type_text(item, known):
    name = item["type"]
    text = f"[{name}](#{anchor(name)})" if name in known else f"`{name}`"
    return f"{item['label']} {text}".strip()


def service_text(service, package, name, head, known):
    out = [f"## {package}.{service['name']}", "",
           f"In [{name}](../proto/recurve/v1/{name}).", "", paragraphs(head), "",
           paragraphs(service["comment"]), ""]
    for rpc in service["items"]:
        for message in (rpc["request"], rpc["response"]):
            if message not in known:
                raise SystemExit(f"{service['name']}.{rpc['name']}: no message {message}")
        request = ("stream of " if rpc["request_stream"] else "") + \
            f"[{rpc['request']}](#{anchor(rpc['request'])})"
        response = ("stream of " if rpc["response_stream"] else "") + \
            f"[{rpc['response']}](#{anchor(rpc['response'])})"
        out += [f"### {rpc['name']}", "", f"{request} → {response}", "",
                paragraphs(rpc["comment"])]
    return out


def message_text(message, known):
    out = [f"### {message['name']}", "", paragraphs(message["comment"])]
    rows = []
    for item in message["items"]:
        if item["kind"] == "oneof":
            one = [f"One of `{item['name']}`."] + item["comment"]
            rows += [(field, one + field["comment"]) for field in item["items"]]
        else:
            rows.append((item, item["comment"]))
    if not rows:
        return out + ["No fields.", ""]
    out += ["| field | type | number | |", "| --- | --- | --- | --- |"]
    out += [f"| `{f['name']}` | {type_text(f, known)} | {f['number']} | {cell(comment)} |"
            for f, comment in rows]
    return out + [""]


def enum_text(enum):
    return [f"### {enum['name']}", "", paragraphs(enum["comment"]),
            "| value | number | |", "| --- | --- | --- |",
            *(f"| `{v['name']}` | {v['number']} | {cell(v['comment'])} |"
              for v in enum["items"]), ""]


def page():
    out = [INTRODUCTION]
    for name in FILES:
        path = ROOT / "proto/recurve/v1" / name
        package = re.search(r"^package (.+);", path.read_text(), re.M)[1]
        head, found = parse(path)
        known = {x["name"] for x in found if x["kind"] != "service"}
        for service in (x for x in found if x["kind"] == "service"):
            out += service_text(service, package, name, head, known)
        for item in found:
            if item["kind"] == "message":
                out += message_text(item, known)
            elif item["kind"] == "enum":
                out += enum_text(item)
    text = "\n".join(out)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description="Writes docs/api.md from the protos")
    parser.add_argument("--check", action="store_true", help="compare, do not write")
    check = parser.parse_args().check
    text = page()
    if not check:
        PAGE.write_text(text)
    elif not PAGE.is_file() or PAGE.read_text() != text:
        print(f"{PAGE.relative_to(ROOT)} is not what the protos say: run tools/api_reference.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
