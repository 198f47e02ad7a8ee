"""Our tokenizers give the ids and the texts of the tokenizers package, for each form of
tokenizer.json, on millions of characters of scripts, code, emoji, control characters and added
tokens. Texts are decoded token by token, so streaming gives what the package decodes at once.

Usage: tokenizer_compare_test.py PROGRAM, which is built from tokenizer_ids.cc. Exit status 77,
and a line that says why, where a package is missing."""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden/tokenizer"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
try:
    import make  # noqa: F401
    import tokenizer_forms as forms
    import tokenizers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

CHARACTERS = 1_000_000  # of each form of forms.CHECKPOINTS
OTHER_CHARACTERS = 200_000
VOCAB_SIZE = 2000  # of the model: larger than those of the tokenizers
PROGRAM = ""


def run(folder, inputs):
    """What our program makes of texts and of lists of ids."""
    lines = "".join(json.dumps(value) + "\n" for value in inputs)
    done = subprocess.run([PROGRAM, folder, str(VOCAB_SIZE)], input=lines, text=True,
                          capture_output=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{PROGRAM}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.split("\n") if line]


class TokenizerCompareTest(unittest.TestCase):

    def check(self, form, seed, size):
        rng = random.Random(f"{form.__name__} {seed}")
        spec = forms.spec(*form(rng))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tokenizer.json"
            path.write_text(json.dumps(spec))
            reference = tokenizers.Tokenizer.from_file(str(path))
            # Special tokens, and the others.
            added = [token["content"] for token in spec["added_tokens"]]
            texts = forms.texts(rng, size, added)
            texts.append("".join(rng.sample(texts, len(texts) // 4)))  # a long one
            ids = forms.random_ids(rng, 2000, reference.get_vocab_size())
            ours = run(folder, texts + ids)
        self.assertEqual(len(ours), len(texts) + len(ids))
        encoded = [encoding.ids for encoding in reference.encode_batch(texts)]
        decoded = reference.decode_batch(encoded + ids)
        for text, our, expected in zip(texts, ours, encoded):
            self.assertEqual(our["ids"], expected, repr(text[:200]))
        for source, our, expected in zip(texts + ids, ours, decoded):
            self.assertEqual(our["text"], expected, repr(source[:200]))
        return sum(map(len, texts))

    def test_every_form(self):
        for form in forms.FORMS:
            with self.subTest(form.__name__):
                size = CHARACTERS if form in forms.CHECKPOINTS else OTHER_CHARACTERS
                self.assertGreaterEqual(self.check(form, seed=1, size=size), size)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
