#!/usr/bin/env python3
"""Trains the tiny tokenizers of this folder and writes what the reference
libraries make of mixed.txt and of the texts in cases().

Needs the packages of tests/requirements.txt; tokenizer_reference_test.py says whether other
versions of them would make the same of the texts.

Run from anywhere; writes next to itself. It trains on sources of this project,
so a run after those changed writes other tokenizers. With names of folders of
byte-level or character tokenizers, it writes those alone, for the same mixed.txt.
"""
import base64
import json
import os
import pathlib
import random
import sys
import tempfile
import unicodedata

import sentencepiece
import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers
from tokenizers import pre_tokenizers, processors, trainers
from tokenizers.models import BPE

HERE = pathlib.Path(__file__).parent
GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

PROSE = [
    "The quick brown fox doesn't jump; it's lazy, they'll say, and WE'VE seen I'D go. ",
    "Größere Städte dürfen früher öffnen, naïve façade, Ærøskøbing, ŒUVRE. ",
    "В чащах юга жил бы цитрус? Да, но фальшивый экземпляр! ",
    "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。",
    "いろはにほへと ちりぬるを　わかよたれそ つねならむ。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. ",
    "صِف خَلقَ خَودِ كَمِثلِ الشَمسِ إِذ بَزَغَت ١٢٣٤٥ ",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण १२३ ",
    "นายสังฆภัณฑ์ เฮงพิทักษ์ฝั่ง ผู้เฒ่าซึ่งมีอาชีพเป็นฅนขายฃวด ",
    "👩‍👩‍👧 🏳️‍🌈 👍🏽 😀😃😄 🇩🇪🇫🇷 ❤️ 🤖",
    "e\u0301 a\u030a\u0323 \u1100\u1161\u11a8 \u212b \u0958 q\u0307\u0323 ﬁ ½ Ⅷ ² ",
    "x = [1, 22, 333, 4444, 55555]  # 3.14159e-10\n\tif (a != b) { return a->b[0]; }\r\n",
    "   \n\n  \t \u00a0\u2003\u3000 \u2028 \u0085 end   ",
    "'s 'S 'Tis 'LL 'ſ don’t ʼn \u180e \u200b \u200d_\u200c ",
    "https://example.org/a?b=c&d=%20#frag <tag attr=\"v\">&amp;</tag> ",
]


def code():
    """Sources of this project."""
    root = HERE.parents[2]
    names = ["engine/engine_step.cc", "kernels/tpa/tpa.h", "README.md", "dev"]
    return [(root / n).read_text() for n in names if (root / n).is_file()]


def random_character(rng):
    """Anything assigned, of any script."""
    while True:
        c = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x3000),
                        rng.randrange(0x20000), 0x1f300 + rng.randrange(0x400),
                        0x300 + rng.randrange(0x70)])
        if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Cn":
            return chr(c)


def mixed(size, seed):
    """At least `size` characters of prose, code, scripts, marks and noise."""
    rng = random.Random(seed)
    pieces = [line + "\n" for text in code() for line in text.split("\n")]
    out = []
    length = 0
    while length < size:
        length += len(out[-1]) if out else 0
        kind = rng.random()
        if kind < 0.4:
            at = rng.randrange(len(pieces))
            out.append("".join(pieces[at:at + 6]))
        elif kind < 0.8:
            out.append(rng.choice(PROSE))
        elif kind < 0.9:
            out.append("".join(random_character(rng) for _ in range(rng.randrange(1, 40))))
        else:
            out.append("".join(rng.choice(" \n\t\r'a1é中.") for _ in range(rng.randrange(1, 30))))
    return "".join(out)


def corpus():
    return code() + PROSE * 8


def train(pattern, byte_level, vocab_size, normalizer=None):
    tokenizer = Tokenizer(BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = byte_level if pattern is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def gpt2():
    tokenizer = train(None, pre_tokenizers.ByteLevel(add_prefix_space=False), 1500)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def llama3():
    tokenizer = train(LLAMA3, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), 1500)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    tokenizer.add_tokens([
        AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True),
        AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
        AddedToken("WORD", single_word=True), AddedToken("WORDS"), AddedToken("  ")])
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                      special_tokens=[("<|begin_of_text|>", bos)])])
    return tokenizer


def qwen():
    tokenizer = train(QWEN, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                      1500, normalizers.NFC())
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False),
                          AddedToken("e\u0301te\u0301", normalized=True),
                          AddedToken("a\u0308", normalized=False)])
    return tokenizer


def prefix_space():
    """GPT-2 again, with the options that none of the others has."""
    tokenizer = train(None, pre_tokenizers.ByteLevel(add_prefix_space=True), 600)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=True)])
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


def train_characters(fallback):
    """As a SentencePiece vocabulary is written to a tokenizer.json: special tokens, bytes if
    `fallback`, then characters and what they merge to, across spaces, too."""
    specials = ["<unk>", "<s>", "</s>"]
    tokenizer = Tokenizer(BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=fallback))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    lines = [" " + line[:60] for text in corpus() for line in text.split("\n") if line.strip()]
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=1000, show_progress=False, limit_alphabet=250,
        special_tokens=specials + [f"<0x{b:02X}>" for b in range(256 if fallback else 0)]))
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    tokenizer.add_tokens([AddedToken("<left>", lstrip=True, normalized=False),
                          AddedToken("<right>", rstrip=True, normalized=False),
                          AddedToken("WORD", single_word=True, normalized=False)])
    return tokenizer


def llama2():
    tokenizer = train_characters(fallback=True)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    return tokenizer


def metaspace():
    tokenizer = train_characters(fallback=False)
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", "first", split=True)
    tokenizer.decoder = decoders.Metaspace("\u2581", "first", split=True)
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=True)])
    return tokenizer


def cases():
    return [
        "", " ", "  ", "\n", "a", "\u0301", "\u0301" * 20, "a\u0301\u0323", "\x00", "\x00a\x7f",
        " leading", "trailing ", "a  b", "a   b\n\n\nc", "\r\n\r\n x", "don't DON'T 'ſ",
        "12345678", "１２３ Ⅷ² ½", "a1b2c3", "\u00a0x\u3000y\u2028z",
        "<|endoftext|>", "a<|endoftext|>b <|endoftext|>", "<|endoftext", "<|begin_of_text|>x",
        "<|im_start|>user\nhi<|im_end|>\n", "<tool_call>{}</tool_call>",
        "a <left> b <left>c", "a <right> \n b", "a  <both>  b<both><both>", " <both>",
        "WORD", "WORDS", "aWORD", "WORD.", "a WORD b", "éWORD", "WORD\u0301", "_WORD", "²WORD",
        "a  b", "    four", "WORDWORD", "WORDS WORD", "été e\u0301te\u0301 a\u0308 ä",
        "\u1100\u1161\u11a8 \uac01", "q\u0307\u0323 \u212b \u0344 \u0f73",
        "中文字符", "👩‍👩‍👧 👍🏽", "\ufeffBOM", "\U0010ffff", "\ue000", "<s>x<s> y", "x<s>",
    ]


def write_ids(name, ids):
    lines = [" ".join(map(str, ids[i:i + 24])) for i in range(0, len(ids), 24)]
    (HERE / name).write_text("\n".join(lines) + "\n")


def dump(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_expected(name, encode, text):
    write_ids(f"{name}/mixed.ids", encode(text))
    dump(HERE / name / "cases.json", [[case, encode(case)] for case in cases()])


def write_tiktoken(spec, text):
    """The same vocabulary as ranks: ids are in the order of the merges."""
    characters = {c: i for i, c in byte_level_alphabet().items()}
    vocab = {bytes(characters[c] for c in token): rank
             for token, rank in spec["model"]["vocab"].items()}
    lines = [base64.b64encode(token).decode() + f" {rank}"
             for token, rank in sorted(vocab.items(), key=lambda item: item[1])]
    (HERE / "gpt2" / "gpt2.tiktoken").write_text("\n".join(lines) + "\n")
    encoding = tiktoken.Encoding("tiny", pat_str=GPT2, mergeable_ranks=vocab,
                                 special_tokens={"<|endoftext|>": len(vocab)})
    expected = [int(i) for i in (HERE / "gpt2/mixed.ids").read_text().split()]
    assert encoding.encode(text, allowed_special="all") == expected


def byte_level_alphabet():
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in own]
    return {b: chr(b) for b in own} | {b: chr(0x100 + i) for i, b in enumerate(rest)}


def write_huggingface(text, names):
    for make in (gpt2, llama3, qwen, prefix_space, llama2, metaspace):
        name = make.__name__
        if names and name not in names:
            continue
        (HERE / name).mkdir(exist_ok=True)
        tokenizer = make()
        spec = json.loads(tokenizer.to_str())
        if name == "llama3":
            spec["model"]["ignore_merges"] = True
        if name == "gpt2":  # as its first files are
            del spec["model"]["type"]
            spec["model"]["merges"] = [" ".join(m) for m in spec["model"]["merges"]]
            dump(HERE / name / "vocab.json",
                 spec["model"]["vocab"] | {"<|endoftext|>": len(spec["model"]["vocab"])})
            (HERE / name / "merges.txt").write_text(
                "#version: 0.2\n" + "\n".join(spec["model"]["merges"]) + "\n")
        dump(HERE / name / "tokenizer.json", spec)
        tokenizer = Tokenizer.from_file(str(HERE / name / "tokenizer.json"))
        write_expected(name, lambda t, tokenizer=tokenizer: tokenizer.encode(t).ids, text)
        if name == "gpt2":
            write_tiktoken(spec, text)
        if name in ("llama2", "metaspace"):
            dump(HERE / name / "decoded.json", decoded(tokenizer))


def decoded(tokenizer):
    """Lists of ids, as a model may draw them, and their texts."""
    rng = random.Random(1)
    lists = [tokenizer.encode(case).ids for case in cases()]
    for _ in range(300):
        lists.append([rng.randrange(rng.choice([300, tokenizer.get_vocab_size()]))
                      for _ in range(rng.randrange(24))])
    return [[ids, tokenizer.decode(ids)] for ids in lists]


def train_sentencepiece(name, **options):
    (HERE / name).mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        lines = [line for text in corpus() for line in text.split("\n") if line.strip()]
        pathlib.Path("corpus.txt").write_text("\n".join(lines))
        # Full-width forms to ASCII, and a ligature.
        rules = [f"{0xff01 + i:X}\t{0x21 + i:X}" for i in range(94)]
        rules += ["FB01\t66 69", "3000\t20", "9\t20", "212B\tC5", "41 30A\tC5"]
        pathlib.Path("rules.tsv").write_text("\n".join(rules) + "\n")
        sentencepiece.SentencePieceTrainer.train(
            input="corpus.txt", model_prefix="tokenizer", minloglevel=2, num_threads=1, **options)
        (HERE / name / "tokenizer.model").write_bytes(pathlib.Path("tokenizer.model").read_bytes())
    os.chdir(HERE)


def write_sentencepiece(text):
    # As Llama 2's.
    train_sentencepiece("sentencepiece_bpe", model_type="bpe", vocab_size=1000, byte_fallback=True,
                        normalization_rule_name="identity", remove_extra_whitespaces=False,
                        split_digits=True, allow_whitespace_only_pieces=True,
                        character_coverage=0.99, user_defined_symbols=["<user>", "def "])
    # As T5's, with unknown characters and a map of its own.
    train_sentencepiece("sentencepiece_unigram", model_type="unigram", vocab_size=900,
                        normalization_rule_tsv="rules.tsv", character_coverage=0.99,
                        user_defined_symbols=["<user>"], control_symbols=["<ctrl>"])
    for name in ("sentencepiece_bpe", "sentencepiece_unigram"):
        processor = sentencepiece.SentencePieceProcessor(str(HERE / name / "tokenizer.model"))
        write_expected(name, processor.encode, text)
        decoded = [processor.decode(processor.encode(case)) for case in cases()]
        dump(HERE / name / "decoded.json", decoded)
        invalid = [b"\xff", b"a\xe4\xb8 b", b"\xf0\x9f\x98\x80\xed\xa0\x80", b"x \xc0\xaf"]
        dump(HERE / name / "invalid.json",
             [[list(case), processor.encode(case)] for case in invalid])


if __name__ == "__main__":
    if sys.argv[1:]:
        write_huggingface((HERE / "mixed.txt").read_bytes().decode(), sys.argv[1:])
        sys.exit()
    mixed_text = mixed(24000, seed=1)
    (HERE / "mixed.txt").write_bytes(mixed_text.encode())
    write_huggingface(mixed_text, [])
    write_sentencepiece(mixed_text)
