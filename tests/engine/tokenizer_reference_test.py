"""The golden ids of tests/golden/tokenizer, with which tokenizer_golden_test.cc compares
our tokenizers, are those of the reference libraries. Exit status 77, and a line that says
why, where tokenizers, tiktoken or sentencepiece are missing."""

import base64
import json
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
try:
    import sentencepiece
    import tiktoken
    import tokenizers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden/tokenizer"
sys.path.insert(0, str(GOLDEN))
import make  # noqa: E402

HUGGINGFACE = ("gpt2", "llama3", "qwen", "prefix_space", "llama2", "metaspace")
SENTENCEPIECE = ("sentencepiece_bpe", "sentencepiece_unigram")


def read_json(name):
    return json.loads((GOLDEN / name).read_text())


class TokenizerReferenceTest(unittest.TestCase):

    def check(self, folder, encode):
        # Not read_text, which would change line ends.
        mixed = (GOLDEN / "mixed.txt").read_bytes().decode()
        ids = [int(i) for i in (GOLDEN / folder / "mixed.ids").read_text().split()]
        self.assertGreater(len(ids), 1000)
        self.assertEqual(ids, encode(mixed))
        cases = read_json(f"{folder}/cases.json")
        self.assertEqual(make.cases(), [text for text, _ in cases])
        for text, ids in cases:
            self.assertEqual(ids, encode(text), repr(text))

    def test_every_folder_is_compared(self):
        self.assertEqual({p.name for p in GOLDEN.iterdir() if p.is_dir()} - {"__pycache__"},
                         {*HUGGINGFACE, *SENTENCEPIECE})

    def test_tokenizers(self):
        for folder in HUGGINGFACE:
            with self.subTest(folder):
                tokenizer = tokenizers.Tokenizer.from_file(str(GOLDEN / folder / "tokenizer.json"))
                self.check(folder, lambda text: tokenizer.encode(text).ids)  # noqa: B023
                if (GOLDEN / folder / "decoded.json").is_file():
                    self.assertEqual(read_json(f"{folder}/decoded.json"), make.decoded(tokenizer))

    def test_tokenizers_from_vocab_and_merges(self):
        bpe = tokenizers.models.BPE.from_file(str(GOLDEN / "gpt2/vocab.json"),
                                              str(GOLDEN / "gpt2/merges.txt"))
        tokenizer = tokenizers.Tokenizer(bpe)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.add_special_tokens(["<|endoftext|>"])
        self.check("gpt2", lambda text: tokenizer.encode(text).ids)

    def test_tiktoken(self):
        lines = (GOLDEN / "gpt2/gpt2.tiktoken").read_text().splitlines()
        ranks = {base64.b64decode(token): int(rank) for token, rank in map(str.split, lines)}
        encoding = tiktoken.Encoding("tiny", pat_str=make.GPT2, mergeable_ranks=ranks,
                                     special_tokens={"<|endoftext|>": len(ranks)})
        self.check("gpt2", lambda text: encoding.encode(text, allowed_special="all"))

    def test_sentencepiece(self):
        for folder in SENTENCEPIECE:
            with self.subTest(folder):
                processor = sentencepiece.SentencePieceProcessor(
                    str(GOLDEN / folder / "tokenizer.model"))
                self.check(folder, processor.encode)
                self.assertEqual(read_json(f"{folder}/decoded.json"),
                                 [processor.decode(processor.encode(t)) for t in make.cases()])
                for values, ids in read_json(f"{folder}/invalid.json"):
                    self.assertEqual(ids, processor.encode(bytes(values)), values)


if __name__ == "__main__":
    unittest.main()
