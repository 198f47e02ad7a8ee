#!/usr/bin/env python3
"""lm-evaluation-harness, as its registry has it, against a server: its scores are those of
the same checkpoint in transformers. Argument: the program recurve-server.

Exit status 77, and a line that says why, where a package is missing."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HOME = tempfile.TemporaryDirectory()  # for what the packages keep
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=HOME.name,
                  TOKENIZERS_PARALLELISM="false")
try:
    import datasets  # noqa: F401: what lm_eval reads tasks with
    import lm_eval
    import requests
    from lm_eval.tasks import TaskManager
    import torch
    import transformers
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SERVER = sys.argv.pop(1)
ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "tests/golden/tokenizer/qwen/tokenizer.json"
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# Several lengths, so that some prompts are computed in steps and some as prompts.
CHOICES = [
    {"question": "The sum of two and two is", "choices": ["four", "five", "a number"], "answer": 0},
    {"question": "In the file " + "a long line of text, " * 12 + "we find",
     "choices": ["nothing", "another line", "the end of it"], "answer": 1},
    {"question": "def f(x):\n    return", "choices": ["x", "x + 1", "None"], "answer": 2},
    {"question": "Recurrent models keep", "choices": ["a state", "all tokens"], "answer": 0},
]
TEXTS = [{"text": "One line.\nAnother one, somewhat longer than the first."},
         {"text": "def add(a, b):\n    return a + b\n" * 20},
         {"text": "été 中文 text"}]
PROMPTS = [{"prompt": "def add(a, b):"}, {"prompt": "The word is " * 20}]

TASKS = {
    "small_choice": """
task: small_choice
dataset_path: json
dataset_kwargs: {data_files: {test: DIR/choices.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "small_perplexity": """
task: small_perplexity
dataset_path: json
dataset_kwargs: {data_files: {test: DIR/texts.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
""",
    "small_generate": """
task: small_generate
dataset_path: json
dataset_kwargs: {data_files: {test: DIR/prompts.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{prompt}}"
generation_kwargs: {until: ["zz"], max_gen_toks: 24, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}


def make_checkpoint(folder):
    """A small random model with a tokenizer, as transformers writes them."""
    torch.manual_seed(46)
    config = Qwen3_5TextConfig(
        vocab_size=1506, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        layer_types=["linear_attention"] * 3 + ["full_attention"],
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
        linear_value_head_dim=16, linear_conv_kernel_dim=4, max_position_embeddings=2048,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=1500, pad_token_id=None,
        dtype="float32")
    model = Qwen3_5ForCausalLM(config).to(torch.float32).eval()
    with torch.no_grad():
        # Far enough from uniform that choices differ by more than rounding.
        model.lm_head.weight.mul_(12)
    model.save_pretrained(folder)
    shutil.copy(TOKENIZER, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>",
         "model_max_length": 2048}))
    return model


class LmEvalTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            os.environ.pop(name, None)
            os.environ.pop(name.upper(), None)
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = Path(cls.folder.name)
        cls.checkpoint = cls.dir / "checkpoint"
        cls.checkpoint.mkdir()
        cls.model = make_checkpoint(cls.checkpoint)
        cls.tokenizer = transformers.AutoTokenizer.from_pretrained(cls.checkpoint)
        for name, rows in (("choices", CHOICES), ("texts", TEXTS), ("prompts", PROMPTS)):
            (cls.dir / f"{name}.jsonl").write_text(
                "".join(json.dumps(row) + "\n" for row in rows))
        for name, task in TASKS.items():
            (cls.dir / f"{name}.yaml").write_text(task.replace("DIR", str(cls.dir)))
        cls.server = subprocess.Popen(
            [SERVER, "--model", str(cls.checkpoint), "--device", "cpu", "--grpc-port", "0",
             "--http-port", "0", "--max-model-len", "2048"],
            stdout=subprocess.PIPE, text=True,
            env={**os.environ, "RECURVE_NUM_THREADS": "1"})
        line = cls.server.stdout.readline()
        cls.url = "http://" + re.fullmatch(r"listening http=(.+)\n", line)[1]
        cls.server.stdout.readline()  # gRPC: it is up

    @classmethod
    def tearDownClass(cls):
        cls.server.send_signal(signal.SIGTERM)
        status = cls.server.wait(timeout=120)
        cls.server.stdout.close()
        cls.folder.cleanup()
        assert status == 0, status

    def model_args(self, **args):
        return ",".join(f"{key}={value}" for key, value in {
            "model": "checkpoint", "base_url": f"{self.url}/v1/completions",
            "tokenizer": str(self.checkpoint), **args}.items())

    def program(self, *tasks):
        """Runs the program lm_eval; the results and samples of each task."""
        out = self.dir / "out"
        done = subprocess.run(
            [sys.executable, "-m", "lm_eval", "--model", "local-completions",
             "--model_args", self.model_args(num_concurrent=4), "--tasks", ",".join(tasks),
             "--include_path", str(self.dir), "--output_path", str(out), "--log_samples"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        self.assertEqual(0, done.returncode, done.stdout[-4000:])
        results = json.loads(next(out.rglob("results_*.json")).read_text())["results"]
        samples = {}
        for task in tasks:
            lines = next(out.rglob(f"samples_{task}_*.jsonl")).read_text().splitlines()
            samples[task] = sorted(map(json.loads, lines), key=lambda one: one["doc_id"])
        return results, samples

    def package(self, task, model="local-completions", batch_size=1, chat=False, **args):
        """The same within this process, which has loaded what the program loads."""
        run = lm_eval.simple_evaluate(
            model=model, model_args=self.model_args(**args), tasks=[task],
            task_manager=TaskManager(include_path=str(self.dir)), batch_size=batch_size,
            apply_chat_template=chat)
        return run["results"][task], run["samples"][task]

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def loglikelihood(self, context, continuation):
        """By transformers: of the tokens of `continuation`, and whether they are the likeliest."""
        with torch.no_grad():
            logits = self.model(torch.tensor([context + continuation])).logits[0].double()
        logprobs = torch.log_softmax(logits, dim=-1)
        rows = range(len(context) - 1, len(context) + len(continuation) - 1)
        total = sum(logprobs[row, token].item() for row, token in zip(rows, continuation))
        greedy = all(logits[row].argmax().item() == token
                     for row, token in zip(rows, continuation))
        return total, greedy

    def want_choices(self):
        want = []
        for row in CHOICES:
            context = self.encode(row["question"])
            want.append([self.loglikelihood(
                context, self.encode(f"{row['question']} {choice}")[len(context):])
                for choice in row["choices"]])
        return want

    def check_choices(self, want, results, samples):
        right = normed = 0
        for row, scores in zip(CHOICES, want):
            totals = [total for total, _ in scores]
            by_length = [total / len(choice) for total, choice in zip(totals, row["choices"])]
            right += totals.index(max(totals)) == row["answer"]
            normed += by_length.index(max(by_length)) == row["answer"]
        self.assertAlmostEqual(right / len(CHOICES), results["acc,none"])
        self.assertAlmostEqual(normed / len(CHOICES), results["acc_norm,none"])
        self.assertEqual(len(CHOICES), len(samples))
        for scores, sample in zip(want, samples):
            self.assertEqual(len(scores), len(sample["filtered_resps"]))
            for (total, greedy), resp in zip(scores, sample["filtered_resps"]):
                self.assertAlmostEqual(total, float(resp[0]), delta=2e-3)
                self.assertEqual(str(greedy), str(resp[1]))

    def check_texts(self, prompts, samples):
        for ids, sample in zip(prompts, samples, strict=True):
            with torch.no_grad():
                tokens = self.model.generate(
                    torch.tensor([ids]), max_new_tokens=24, do_sample=False,
                    pad_token_id=1500)[0, len(ids):]
            text = self.tokenizer.decode(tokens, skip_special_tokens=True)
            self.assertEqual(text.split("zz")[0], sample["filtered_resps"][0])

    def test_the_program_scores_as_transformers_do(self):
        results, samples = self.program(*TASKS)
        with self.subTest("choices"):
            self.check_choices(self.want_choices(), results["small_choice"],
                               samples["small_choice"])
        with self.subTest("perplexity"):
            total = words = size = 0
            for row in TEXTS:
                # <|endoftext|> comes before.
                total += self.loglikelihood([1500], self.encode(row["text"]))[0]
                words += len(re.split(r"\s+", row["text"]))
                size += len(row["text"].encode())
            got = results["small_perplexity"]
            self.assertEqual(len(TEXTS), len(samples["small_perplexity"]))
            self.assertAlmostEqual(
                1, math.exp(-total / words) / got["word_perplexity,none"], delta=1e-4)
            self.assertAlmostEqual(-total / size / math.log(2), got["bits_per_byte,none"],
                                   delta=1e-4)
        with self.subTest("texts"):
            self.check_texts([self.encode(row["prompt"]) for row in PROMPTS],
                             samples["small_generate"])

    def test_texts_and_batches_score_the_same(self):
        want = self.want_choices()
        for args in ({"tokenized_requests": False}, {"batch_size": 4}):
            with self.subTest(**args):
                self.check_choices(want, *self.package("small_choice", **args))

    def test_chat(self):
        chat = f"{self.url}/v1/chat/completions"
        probe = requests.post(chat, json={"messages": [{"role": "user", "content": "a"}],
                                          "max_tokens": 1}, timeout=60)
        if probe.status_code == 404:
            self.skipTest("this server has no chat API")
        self.assertEqual(200, probe.status_code, probe.text)
        _, samples = self.package("small_generate", model="local-chat-completions", chat=True,
                                  base_url=chat)
        self.check_texts(
            [self.tokenizer.apply_chat_template(
                [{"role": "user", "content": row["prompt"]}], add_generation_prompt=True,
                return_dict=False)
             for row in PROMPTS], samples)


if __name__ == "__main__":
    unittest.main()
