#!/usr/bin/env python3
"""The page at / in a headless Chromium. Argument: the program recurve-server.

With --screenshots FOLDER it also writes the pictures of docs/page.md. Exit status 77, and a
line that says why, where there is no Chromium."""

import base64
import hashlib
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/testing"))
import chromium  # noqa: E402

CHROMIUM = chromium.find()
if CHROMIUM is None:
    print("skipped: there is no Chromium (on Debian: apt-get install chromium)")
    sys.exit(77)

PICTURES = None
if "--screenshots" in sys.argv:
    where = sys.argv.index("--screenshots")
    PICTURES = Path(sys.argv[where + 1])
    del sys.argv[where:where + 2]
SERVER = sys.argv.pop(1)
PROMPT = "def fibonacci(n):\n"


class Server:
    def __init__(self, *flags, model=ROOT / "deploy/models/demo"):
        # The sanitizers' options come with the environment; proxies must not.
        self.process = subprocess.Popen(
            [SERVER, "--model", str(model), "--device", "cpu",
             "--grpc-port", "0", "--http-port", "0", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "RECURVE_NUM_THREADS": "1"})
        line = self.process.stdout.readline()
        self.address = re.fullmatch(r"listening http=(.+)\n", line)[1]
        self.url = f"http://{self.address}/"
        while not self.process.stdout.readline().startswith("listening grpc="):
            pass

    def get(self, path, method="GET", body=None, **headers):
        """Status, headers and body of an answer."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, names)
        answer = connection.getresponse()
        result = answer.status, dict(answer.headers), answer.read().decode()
        connection.close()
        return result

    def states(self):
        return json.loads(self.get("/v1/states")[2])["data"]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=120)
        self.process.stdout.close()
        return status


TEMPLATE = """{%- for message in messages -%}
<|{{ message.role }}|>
{{ message.content }}
{% endfor -%}
{%- if add_generation_prompt -%}<|assistant|>
{% endif -%}"""


def random_chat_model(folder):
    """A chat model of the demo model's shapes with random weights."""
    demo = ROOT / "deploy/models/demo"
    data = (demo / "model.safetensors").read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:size])
    header.pop("__metadata__", None)
    draw = random.Random(1)
    signs = bytes(0xbd if byte & 1 else 0x3d for byte in range(256))
    weights = bytearray(data[size:])
    for tensor in header.values():
        assert tensor["dtype"] == "BF16", tensor
        begin, end = tensor["data_offsets"]
        one = bytearray(draw.randbytes(end - begin))
        one[1::2] = one[1::2].translate(signs)  # 2^-5 to 2^-3, of either sign
        if len(tensor["shape"]) == 1:
            one = bytearray(b"\x80\x3f" * ((end - begin) // 2))  # 1
        weights[begin:end] = one
    (folder / "model.safetensors").write_bytes(data[:size] + weights)
    (folder / "config.json").write_bytes((demo / "config.json").read_bytes())
    (folder / "chat_template.jinja").write_text(TEMPLATE)


class Pages(unittest.TestCase):
    """What the tests of the page do in a browser."""

    server = None

    def browse(self, server=None, dark=False, width=1280, height=900, quiet=True):
        browser = chromium.Chromium(CHROMIUM, dark)
        self.addCleanup(browser.close)
        browser.size(width, height)
        browser.open((server or self.server).url)
        if quiet:
            # The page asks whether there is chat.
            self.addCleanup(lambda: self.assertEqual(
                [], [one for one in browser.problems if "/v1/chat/completions" not in one]))
        return browser

    def ready(self, browser):
        browser.wait("document.getElementById('model').textContent.includes('tokens')")
        browser.wait("!document.getElementById('load').hidden")

    def generate(self, browser, prompt=PROMPT, **options):
        """Generates from the form, and waits for the end."""
        for name, value in {"max-tokens": 24, "seed": 11, **options}.items():
            browser.js(f"document.getElementById('{name}').value = '{value}'")
        browser.js("document.getElementById('input').value = ''; "
                   "document.getElementById('input').focus()")
        browser.type(prompt)
        browser.pointer("#send", click=True)
        self.done(browser)

    def done(self, browser):
        browser.wait("document.getElementById('status').textContent.startsWith('Done')")

    def texts(self, browser, selector):
        return browser.js("Array.from(document.querySelectorAll("
                          f"{json.dumps(selector)}), (e) => e.textContent)")

    def picture(self, browser, name):
        if PICTURES:
            PICTURES.mkdir(parents=True, exist_ok=True)
            (PICTURES / f"{name}.png").write_bytes(base64.b64decode(browser.screenshot()))

class PageTest(Pages):
    """The page on one server, in a new browser for each test."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_a_completion_is_what_the_api_gives(self):
        browser = self.browse()
        self.ready(browser)
        self.generate(browser)
        body = {"prompt": PROMPT, "max_tokens": 24, "seed": 11, "temperature": 0.8, "logprobs": 5}
        status, _, answer = self.server.get("/v1/completions", "POST", json.dumps(body),
                                            Content_Type="application/json")
        self.assertEqual(200, status, answer)
        choice = json.loads(answer)["choices"][0]
        tokens = self.texts(browser, ".token")
        self.assertEqual(24, len(tokens))
        self.assertEqual(choice["text"], "".join(tokens))
        # As surprising as it is tinted.
        surprise = browser.js("Array.from(document.querySelectorAll('.token'), "
                              "(e) => Number(e.style.getPropertyValue('--surprise')))")
        for value, logprob in zip(surprise, choice["logprobs"]["token_logprobs"]):
            self.assertAlmostEqual(min(1, -logprob / 5), value, delta=0.01)
        facts = self.texts(browser, ".facts")[0]
        self.assertRegex(facts, r"prompt 19cached \d+generated 24first token .* tokens/s")
        self.assertIn("ended by length", facts)

    def test_alternatives_show_on_hover_and_by_key(self):
        browser = self.browse()
        self.ready(browser)
        self.generate(browser)
        browser.pointer(".token:nth-of-type(3)")
        browser.wait("!document.getElementById('detail').hidden")
        self.assertIn("Token 3", self.texts(browser, "#detail h3")[0])
        self.assertEqual(5, len(self.texts(browser, "#detail li")) -
                         (self.texts(browser, "#detail li:nth-child(6)") != []))
        browser.key("Escape")
        self.assertTrue(browser.js("document.getElementById('detail').hidden"))
        # By keys alone: Tab to the tokens, on by an arrow, in by Enter, out by Escape.
        browser.js("document.querySelector('.text').focus()")
        browser.key("Tab")
        browser.key("ArrowRight")
        self.assertEqual("1", browser.js("document.activeElement.dataset.index"))
        self.assertIn("Token 2", self.texts(browser, "#detail h3")[0])
        self.assertEqual("detail",
                         browser.js("document.activeElement.getAttribute('aria-describedby')"))
        browser.key("Enter", "\r")
        self.assertTrue(browser.js("document.getElementById('detail')"
                                   ".contains(document.activeElement)"))
        browser.key("Escape")
        self.assertEqual("1", browser.js("document.activeElement.dataset.index"))

    def test_branches_make_a_tree(self):
        for state in self.server.states():
            self.server.get(f"/v1/states/{state['id']}", "DELETE")
        browser = self.browse()
        self.ready(browser)
        self.generate(browser)
        first = self.texts(browser, ".token")
        # The token drawn again, with a seed of its own.
        browser.pointer(".token:nth-of-type(10)", click=True)
        browser.js("document.getElementById('seed').value = '5'")
        browser.pointer("#detail .primary", click=True)
        browser.wait("document.querySelectorAll('.run').length === 2")
        self.done(browser)
        browser.wait("document.querySelectorAll('#tree li').length === 3")
        before = PROMPT + "".join(first[:9])
        self.assertEqual(before, self.texts(browser, ".before")[1])
        drawn = "".join(self.texts(browser, ".run:nth-child(2) .token"))
        # As a completion of all of that text, with that seed.
        states = {state["id"]: state for state in self.server.states()}
        fork = next(s for s in states.values() if s["parent"] and states[s["parent"]]["parent"] is None)
        leaf = next(s for s in states.values() if s["parent"] == fork["id"])
        self.assertEqual(19 + 9, fork["tokens"])
        status, _, answer = self.server.get(
            "/v1/completions", "POST", json.dumps({"from_state": fork["id"], "max_tokens": 24,
                                                   "seed": 5, "temperature": 0.8}),
            Content_Type="application/json")
        self.assertEqual(200, status, answer)
        self.assertEqual(json.loads(answer)["choices"][0]["text"], drawn)
        # An alternative in its place.
        browser.pointer(".run:first-child .token:nth-of-type(4)", click=True)
        browser.pointer("#detail li button", click=True)
        browser.wait("document.querySelectorAll('.run').length === 3")
        self.done(browser)
        browser.wait("document.querySelectorAll('#tree li').length === 5")
        self.assertNotEqual(first[3], self.texts(browser, ".before")[2][len(PROMPT) + 3:])
        browser.pointer(".run:first-child .token:nth-of-type(6)", click=True)
        browser.wait("!document.getElementById('detail').hidden")
        browser.js("window.scrollTo(0, 0)")
        self.picture(browser, "page")
        browser.key("Escape")
        # Pinned and released from the tree; the parent goes first, its children stay.
        browser.pointer("#tree > li > .node button:nth-of-type(3)", click=True)
        browser.wait("document.querySelector('#tree > li > .node').textContent.includes('Unpin')")
        self.assertTrue(any(state["pinned"] for state in self.server.states()))
        browser.pointer("#tree > li > .node button:nth-of-type(4)", click=True)
        browser.wait("document.querySelectorAll('#tree li').length === 4")
        self.assertIn(leaf["id"], [state["id"] for state in self.server.states()])
        browser.pointer(".run:first-child .token:nth-of-type(4)")
        browser.wait("document.getElementById('detail').textContent.includes('state is gone')")

    def test_a_state_of_another_client_can_be_branched_from(self):
        body = {"prompt": "x = [", "max_tokens": 4, "seed": 1, "keep_state": True}
        _, _, answer = self.server.get("/v1/completions", "POST", json.dumps(body),
                                       Content_Type="application/json")
        made = json.loads(answer)["choices"][0]
        browser = self.browse()
        self.ready(browser)
        browser.wait("document.querySelector('#tree li')")
        name = made["state"]["id"][:8]
        browser.js("Array.from(document.querySelectorAll('#tree .name'))"
                   f".find((e) => e.textContent.includes('{name}')).click()")
        browser.wait("document.querySelector('.token')")
        self.assertEqual(["‹256›", *("x = [" + made["text"])], self.texts(browser, ".token"))
        browser.pointer(".token:nth-of-type(3)", click=True)
        browser.pointer("#detail .primary", click=True)
        browser.wait("document.querySelectorAll('.run').length === 2")
        self.done(browser)
        self.assertEqual("x", self.texts(browser, ".run:nth-child(2) .before")[0])

    def test_a_request_can_be_stopped(self):
        browser = self.browse()
        self.ready(browser)
        browser.js("document.getElementById('max-tokens').value = '8000'; "
                   "document.getElementById('input').focus()")
        browser.type(PROMPT)
        browser.pointer("#send", click=True)
        browser.wait("document.querySelector('.token')")
        browser.js("document.getElementById('stop').click()")  # it moves with the text
        browser.wait("document.querySelector('.facts').textContent.includes('stopped here')")
        while "recurve_num_requests_running 0" not in self.server.get("/metrics")[2]:
            pass

    def test_errors_are_said(self):
        browser = self.browse(quiet=False)
        self.ready(browser)
        browser.js("document.getElementById('max-tokens').value = '9000'; "
                   "document.getElementById('input').focus()")
        browser.type("x")
        browser.pointer("#send", click=True)
        browser.wait("document.querySelector('.error')")
        self.assertIn("max_tokens is 9000", self.texts(browser, ".error")[0])

    def test_it_fits_a_phone(self):
        browser = self.browse(width=360, height=740)
        self.ready(browser)
        self.generate(browser)
        browser.pointer(".token:nth-of-type(5)", click=True)
        browser.wait("!document.getElementById('detail').hidden")
        self.assertEqual(360, browser.js("document.documentElement.scrollWidth"))
        outside = browser.js("""Array.from(document.querySelectorAll('button, input, .card, .run'))
            .filter((e) => e.offsetParent && (e.getBoundingClientRect().right > 360.5 ||
                                              e.getBoundingClientRect().left < -0.5))
            .map((e) => e.id || e.className || e.outerHTML)""")
        self.assertEqual([], [one for one in outside])
        self.picture(browser, "page-phone")

    def test_everything_has_a_name_for_a_screen_reader(self):
        browser = self.browse()
        self.ready(browser)
        self.generate(browser)
        browser.wait("document.querySelector('#tree li')")
        browser.call("Accessibility.enable")
        nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
        roles = {"button", "textbox", "spinbutton", "checkbox", "radio", "meter", "article", "region",
                 "complementary", "group"}
        seen = set()
        for node in nodes:
            role = node.get("role", {}).get("value")
            if node.get("ignored") or role not in roles:
                continue
            seen.add(role)
            named = node.get("name", {}).get("value", "").strip()
            if role == "group" and not named:  # <details>
                continue
            self.assertTrue(named, node)
        self.assertLessEqual({"button", "textbox", "meter", "article", "complementary"}, seen)
        self.assertEqual("polite", browser.js("document.getElementById('status').ariaLive"))
        self.assertEqual("en", browser.js("document.documentElement.lang"))

    def test_load_is_live(self):
        browser = self.browse()
        self.ready(browser)
        self.generate(browser)
        browser.wait("Number(document.getElementById('rate').textContent) > 0 || "
                     "/[1-9]/.test(document.querySelector('#spark polyline').getAttribute('points')"
                     ".replaceAll(/[^ ]*,31(?= |$)/g, ''))")
        self.assertEqual("serving", self.texts(browser, "#health")[0])
        self.assertRegex(self.texts(browser, "#slots-text")[0], r"^\d+ of \d+$")

    def test_the_policy_lets_nothing_else_in(self):
        status, headers, _ = self.server.get("/")
        self.assertEqual(200, status)
        policy = headers["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        self.assertNotIn("http", policy)
        self.assertEqual("nosniff", headers["X-Content-Type-Options"])
        self.assertEqual("no-referrer", headers["Referrer-Policy"])
        for file in re.findall(r'(?:src|href)="(/ui/[^"]+)"', self.server.get("/")[2]):
            status, headers, _ = self.server.get(file)
            self.assertEqual((200, policy), (status, headers["Content-Security-Policy"]), file)
        browser = self.browse(quiet=False)
        self.ready(browser)
        self.assertFalse(browser.js("""(() => {
            const script = document.createElement('script');
            try { script.textContent = 'window.broken = true'; } catch {}
            document.body.append(script);
            return window.broken === true; })()"""))
        self.assertEqual("blocked", browser.js(
            "fetch('http://127.0.0.1:1/').then(() => 'sent', () => 'blocked')"))
        self.assertTrue(any("Content Security Policy" in p or "connect-src" in p
                            for p in browser.problems), browser.problems)

    def test_other_hosts_are_refused(self):
        name = "example.com:" + self.server.address.rpartition(":")[2]
        for path in ("/", "/ui/main.js", "/v1/states"):
            status, _, body = self.server.get(path, Host=name)
            self.assertEqual(403, status, path)
            self.assertIn("Host is 'example.com", body)
        body = json.dumps({"prompt": "x", "max_tokens": 1})
        for host, origin, want in ((name, f"http://{name}", 403), (name, None, 200),
                                   ("localhost", "http://localhost", 200), ("[::1]:80", "x", 200)):
            headers = {"Host": host, "Content_Type": "application/json"}
            if origin:
                headers["Origin"] = origin
            status, _, answer = self.server.get("/v1/completions", "POST", body, **headers)
            self.assertEqual(want, status, (host, answer))

    def test_methods(self):
        self.assertEqual(405, self.server.get("/", "POST")[0])
        status, headers, body = self.server.get("/", "HEAD")
        self.assertEqual((200, ""), (status, body))
        self.assertEqual(404, self.server.get("/ui/nothing.js")[0])


class FlagsTest(Pages):
    """Servers with other flags."""

    def start(self, *flags, **options):
        server = Server(*flags, **options)
        self.addCleanup(lambda: self.assertEqual(0, server.stop()))
        return server

    def test_a_key_is_used_and_never_stored(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as keys:
            for name, key, rest in (("acme", "right", ""), ("ops", "boss", " admin=true")):
                keys.write(f"{name} sha256={hashlib.sha256(key.encode()).hexdigest()}{rest}\n")
            keys.flush()
            server = self.start("--api-keys-file", keys.name)
            self.assertEqual(200, server.get("/")[0])
            self.assertEqual(401, server.get("/v1/states")[0])
            browser = self.browse(server, quiet=False)
            browser.wait("document.getElementById('model').textContent === 'needs an API key'")
            browser.js("document.getElementById('key').focus()")
            browser.type("right")
            browser.wait("document.getElementById('model').textContent.includes('tokens')")
            browser.wait("document.getElementById('load-note').textContent.includes('admin')")
            self.assertEqual("serving", self.texts(browser, "#health")[0])
            self.generate(browser)
            browser.wait("document.querySelector('#tree li')")
            browser.js("document.getElementById('key').select()")
            browser.type("boss")
            browser.wait("!document.getElementById('load').hidden")
            # The states of a tenant are its own.
            browser.wait("!document.querySelector('#tree li')")
            self.assertEqual([0, 0, "", 0], browser.js(
                "indexedDB.databases().then((all) => [localStorage.length, sessionStorage.length,"
                " document.cookie, all.length])"))
            browser.open(server.url)
            browser.wait("document.getElementById('model').textContent === 'needs an API key'")
            self.assertEqual("", browser.js("document.getElementById('key').value"))

    def test_chat(self):
        try:
            import jinja2  # noqa: F401
        except ImportError as error:
            self.skipTest(str(error))
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        random_chat_model(Path(folder.name))
        server = self.start("--chat-python", sys.executable, "--served-model-name", "random-chat",
                            model=folder.name)
        browser = self.browse(server)
        self.ready(browser)
        browser.pointer("input[value=chat] + span", click=True)
        self.generate(browser, "Hello!")
        body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 24, "seed": 11,
                "temperature": 0.8, "logprobs": True, "top_logprobs": 5}

        def asked():
            status, _, answer = server.get("/v1/chat/completions", "POST", json.dumps(body),
                                           Content_Type="application/json")
            self.assertEqual(200, status, answer)
            return json.loads(answer)["choices"][0]

        def surprises(run):
            return browser.js(f"Array.from(document.querySelectorAll('.run:nth-child({run}) .token'),"
                              " (e) => Number(e.style.getPropertyValue('--surprise')))")

        first = asked()
        for run, choice in ((1, first), (2, None)):
            if choice is None:  # a second turn follows the first
                self.generate(browser, "And then?")
                body["messages"] += [first["message"], {"role": "user", "content": "And then?"}]
                body["messages"][1] = {"role": "assistant", "content": first["message"]["content"]}
                choice = asked()
            want = [min(1, -token["logprob"] / 5) for token in choice["logprobs"]["content"]]
            got = surprises(run)
            self.assertEqual(len(want), len(got))
            for one, other in zip(want, got):
                self.assertAlmostEqual(one, other, delta=0.01)
        self.assertEqual("Hello!", self.texts(browser, ".run:first-child .before")[0].strip())
        browser.wait("document.querySelectorAll('#tree li').length === 2")
        # A branch of an answer.
        browser.pointer(".run:nth-child(2) .token:nth-of-type(6)", click=True)
        self.picture(browser, "page-chat")
        browser.pointer("#detail .primary", click=True)
        browser.wait("document.querySelectorAll('.run').length === 3")
        self.done(browser)
        browser.wait("document.querySelectorAll('#tree li').length === 4")
        browser.pointer("#clear", click=True)
        browser.wait("document.getElementById('clear').hidden")

    def test_without_a_template_chat_is_refused_and_says_why(self):
        browser = self.browse(self.start(), quiet=False)
        self.ready(browser)
        self.assertTrue(browser.js("document.querySelector('input[value=chat]').disabled"))
        self.assertIn("no chat template", self.texts(browser, "#no-chat")[0])

    def test_the_page_can_be_off(self):
        server = self.start("--ui", "off")
        for path in ("/", "/ui/main.js"):
            status, _, body = server.get(path)
            self.assertEqual(404, status)
            self.assertIn("there is nothing under", body)
        body = json.dumps({"prompt": "x", "max_tokens": 1})
        self.assertEqual(200, server.get("/v1/completions", "POST", body, Host="example.com",
                                         Origin="http://example.com",
                                         Content_Type="application/json")[0])

    def test_without_states_and_metrics_it_says_so(self):
        server = self.start("--prefix-cache", "off", "--metrics-port", "0")
        browser = self.browse(server, quiet=False)
        browser.wait("document.getElementById('tree-note').textContent.includes('keeps no states')")
        browser.wait("document.getElementById('load-note').textContent.includes('--metrics-port')")
        self.generate(browser)
        browser.pointer(".token:nth-of-type(3)")
        browser.wait("document.getElementById('detail').textContent.includes('was not kept')")


if __name__ == "__main__":
    unittest.main()
