"""Renders chat templates for the server, which starts this as its own process.

A template is a program that came with the checkpoint. It runs in Jinja2's sandbox, and this
process has no rights to lose: no file or socket can be opened, no process started, memory
and the time of each message are limited. The server (template_process.cc) kills and
restarts it.

Frames on standard input and output are a length (4 bytes, little endian) and JSON in UTF-8.
First comes the configuration, answered by {} or {"error"}; then, for each request, a frame
of control and one with the body of the HTTP request, whose order of keys counts, answered
by {"text", "history", "breaks"} or {"error"}.
"""

import codecs
import json
import os
import re
import resource
import signal
import struct
import sys
from datetime import datetime

try:
    import jinja2
    import jinja2.debug  # else imported when a template first fails
    import jinja2.ext
    import jinja2.sandbox
except ImportError as error:
    jinja2 = None
    IMPORT_ERROR = f"{sys.executable} cannot import jinja2: {error}"


class Problem(Exception):
    """What the client is told."""


def read_exactly(count):
    data = bytearray()
    while len(data) < count:
        piece = os.read(0, min(count - len(data), 1 << 20))
        if not piece:
            sys.exit(0)  # the server is gone
        data += piece
    return bytes(data)


def read_frame():
    return read_exactly(struct.unpack("<I", read_exactly(4))[0])


def write_frame(value):
    # A lone surrogate, which a template can make, is no UTF-8.
    payload = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    data = memoryview(struct.pack("<I", len(payload)) + payload)
    while data:
        data = data[os.write(1, data):]


def give_up_rights(memory_bytes):
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: 0,  # those that are open stay
    }
    for which, limit in limits.items():
        resource.setrlimit(which, (limit, limit))
    if os.geteuid() == 0:
        nobody = 65534
        os.setgroups([])
        os.setresgid(nobody, nobody, nobody)
        os.setresuid(nobody, nobody, nobody)
    # Not for a user with other processes: then it may count these and be too low, which
    # is what it is for.
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def load_what_loads_late():
    """Has Python import what it would import in the middle of a template."""
    for codec in ("ascii", "unicode_escape", "latin-1", "utf-8"):
        codecs.lookup(codec)
    make_environment().from_string(
        "{{ 'é' | tojson }}{{ '%s' | format(1) }}{{ strftime_now('%B') }}").render()


def raise_exception(message):
    raise Problem(f"the chat template refuses them: {message}")


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    # Jinja2's own escapes characters of HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def make_environment():
    class Generation(jinja2.ext.Extension):
        """{% generation %} marks what an assistant said, for training."""

        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols, Generation])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.globals.pop("lipsum", None)
    return environment


class Template:
    def __init__(self, environment, source):
        self.template = environment.from_string(source)
        # As vLLM and others guess it: who loops over a content takes its parts.
        self.takes_parts = bool(
            re.search(r"\bfor\s+\w+\s+in\s+\S*content\b|\bfor\s+\w+\s+in\s+\S*\['content'\]", source))
        self.knows_developer = "developer" in source

    def render(self, variables, max_bytes):
        pieces, size = [], 0
        for piece in self.template.root_render_func(self.template.new_context(variables)):
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise Problem(f"the chat template writes more than {max_bytes} characters")
        return "".join(pieces)

    def message(self, message):
        """A message as templates know it."""
        message = {key: value for key, value in message.items() if value is not None}
        if message["role"] == "developer" and not self.knows_developer:
            message["role"] = "system"
        content = message.get("content", "")
        if isinstance(content, list):
            texts = [part["text"] for part in content]
            content = ([{"type": "text", "text": text} for text in texts]
                       if self.takes_parts else "\n".join(texts))
        message["content"] = content
        if "reasoning" in message:
            message.setdefault("reasoning_content", message["reasoning"])
        if "tool_calls" in message:
            message["tool_calls"] = [self.tool_call(call) for call in message["tool_calls"]]
        return message

    @staticmethod
    def tool_call(call):
        call = dict(call)
        function = dict(call["function"])
        # Templates write arguments by themselves, from the object.
        arguments = function.get("arguments") or "{}"
        function["arguments"] = json.loads(arguments)
        call["function"] = function
        return call


def common_prefix(a, b):
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    low, high = 0, length
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


# Marks a place in the text. The space shows whether the template strips contents.
MARK = "<<recurve continues here>> "


def marked(message, part=-1):
    """`message` with MARK behind its content, or behind one part of it."""
    content = message.get("content") or ""
    if isinstance(content, list):
        parts = [dict(one) for one in content]
        parts[part]["text"] += MARK
        return {**message, "content": parts}
    return {**message, "content": content + MARK}


def before_mark(text):
    """What stands before MARK, without what the template strips there; or None."""
    place = text.rfind(MARK.strip())
    if place < 0:
        return None
    return text[:place] if text.startswith(MARK, place) else text[:place].rstrip()


class Renderer:
    def __init__(self, config):
        environment = make_environment()
        self.templates = {}
        for name, source in config["templates"].items():
            try:
                self.templates[name] = Template(environment, source)
            except jinja2.TemplateSyntaxError as error:
                raise Problem(f"line {error.lineno}: {error.message}") from None
        self.tokens = config["tokens"]
        self.max_bytes = config["max_bytes"]

    def __call__(self, control, body):
        tools = body.get("tools") if control["tools"] else None
        template = self.templates["default"]
        if tools:
            template = self.templates.get("tool_use", template)
        messages = body["messages"]
        variables = {**self.tokens, "tools": tools or None, "documents": None,
                     **control["variables"], **(body.get("chat_template_kwargs") or {})}

        def render(some, prompt):
            return template.render(
                {**variables, "messages": [template.message(message) for message in some],
                 "add_generation_prompt": prompt}, self.max_bytes)

        if control["continue"]:
            text = self.continued(messages, render)
        else:
            text = render(messages, control["generation_prompt"])
        answer = {"text": text, "history": -1, "breaks": []}
        if control["generation_prompt"]:
            answer["history"] = self.bytes_before(text, lambda: render(messages, False))
        for index, part in control["breaks"]:
            some = [*messages[:index], marked(messages[index], part), *messages[index + 1:]]
            answer["breaks"].append(
                self.bytes_before(text, lambda some=some: before_mark(render(some, False))))
        return answer

    @staticmethod
    def continued(messages, render):
        last = messages[-1]
        if last.get("tool_calls") or last.get("content") == []:
            raise Problem("continue_final_message: the last message has tool calls or no text")
        text = before_mark(render([*messages[:-1], marked(last)], False))
        if text is None:
            raise Problem("continue_final_message: the chat template does not show the content "
                          "of the last message")
        return text

    @staticmethod
    def bytes_before(text, other):
        """How many bytes `text` and what `other` renders begin with; -1 if that cannot be."""
        try:
            shown = other()
        except (Problem, jinja2.TemplateError):  # it may refuse what it has not refused before
            return -1
        if shown is None:
            return -1
        return len(text[:common_prefix(text, shown)].encode("utf-8", "replace"))


def failure(error):
    if isinstance(error, Problem):
        return str(error)
    if isinstance(error, OSError):  # its text has names of files
        return "the chat template does what it may not"
    if isinstance(error, MemoryError):
        return "the chat template needs more memory than it may have"
    if isinstance(error, RecursionError):
        return "the chat template recurses too deeply"
    message = str(error)[:1000]
    return f"the chat template fails on them: {type(error).__name__}: {message}"


def main():
    config = json.loads(read_frame())
    if jinja2 is None:
        write_frame({"error": IMPORT_ERROR})
        return
    try:
        load_what_loads_late()
        give_up_rights(config["memory_bytes"])
        render = Renderer(config)  # runs what is constant in a template
    except Exception as error:  # pylint: disable=broad-except
        write_frame({"error": failure(error)})
        return
    write_frame({})
    while True:
        control = json.loads(read_frame())
        body = read_frame()
        # At its end the process ends, whatever the template does.
        signal.setitimer(signal.ITIMER_REAL, config["seconds"])
        try:
            answer = render(control, json.loads(body.removeprefix(codecs.BOM_UTF8).decode()))
        except Exception as error:  # pylint: disable=broad-except
            answer = {"error": failure(error)}
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_frame(answer)


if __name__ == "__main__":
    main()
