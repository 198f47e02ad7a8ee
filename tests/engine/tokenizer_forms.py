"""Tokenizers of every form of tokenizer.json that Recurve reads, trained on a small corpus,
and texts to compare them on. Everything is drawn from a seed."""

import functools
import json
import unicodedata

import make
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers
from tokenizers import pre_tokenizers, processors, trainers
from tokenizers.models import BPE

# Qwen 3.5's, in which marks are parts of words.
QWEN_MARKS = make.QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]",
                                                                     r"[^\s\p{L}\p{M}\p{N}]")
# OpenAI's cl100k, on which that of OLMo 2 builds.
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
          r"|\s*[\r\n]|\s+(?!\S)|\s+")
SPACE = "\u2581"
CONTROLS = "".join(map(chr, [*range(0x20), 0x7F, *range(0x80, 0xA0), 0x200B, 0x200E, 0x202E, 0xFEFF,
                             0xFFF9, 0xFFFD, 0xE0001, 0x10FFFF]))
EMOJI = "😀🤖👍🏽❤️🇩🇪👩‍👩‍👧🏴‍☠️🧑🏿‍🚀🫠🪩⌚️1️⃣"
# What looks like the tokens of vocabularies.
SPELLINGS = ["<0x0A>", "<0x41>", "<unk>", "<s>", "</s>", SPACE, SPACE * 2, "Ġ", "Ċ", "<|", "|>"]


@functools.cache
def code():
    """Some lines of this project's sources."""
    return [line for text in make.code() for line in text.split("\n") if line.strip()][:1500]


def added_tokens(rng, special_prefix):
    """Special tokens as of chats, and tokens with random flags."""
    tokens = [AddedToken(f"<|{special_prefix}{i}|>", special=True, normalized=False)
              for i in range(3)]
    # No two that a normaliser makes equal: of those, the package takes any.
    contents = ["<user>", "WORD", "WORDS", "  ", "    ", "\n\n\n", "e\u0301te\u0301", "à", "中文字",
                "😀", "def ", "<a>", "<a><b>", "x", "<tool_call>"]
    for content in rng.sample(contents, 9):
        flags = {name: rng.random() < 0.4
                 for name in ("single_word", "lstrip", "rstrip", "normalized")}
        # White space that another token may take: on such the package fails.
        flags["lstrip"] = flags["lstrip"] and (flags["rstrip"] or not content.isspace())
        tokens.append(AddedToken(content, special=rng.random() < 0.2 and not flags["normalized"],
                                 **flags))
    return tokens


def train_byte_level(rng, pattern, normalizer, vocab_size=1200):
    tokenizer = Tokenizer(BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    tokenizer.pre_tokenizer = byte_level if pattern is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        code() + make.PROSE * 8,
        trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False,
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_tokens(added_tokens(rng, "im_"))
    return tokenizer


def train_characters(rng, fallback=256, vocab_size=1200, unk=True, fuse_unk=True):
    """As SentencePiece's vocabularies: special tokens, `fallback` bytes, then characters."""
    specials = ["<unk>", "<s>", "</s>"]
    tokenizer = Tokenizer(BPE(unk_token="<unk>" if unk else None, fuse_unk=fuse_unk,
                              byte_fallback=fallback > 0))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    # Lines and no words, so that tokens span words, too.
    tokenizer.train_from_iterator(
        [" " + line[:60] for line in code()[:400] + make.PROSE * 3],
        trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, limit_alphabet=300,
                            special_tokens=specials + [f"<0x{b:02X}>" for b in range(fallback)]))
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.normalizer = None
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    return tokenizer


def prefix(tokenizer, token):
    return processors.TemplateProcessing(single=f"{token} $A",
                                         special_tokens=[(token, tokenizer.token_to_id(token))])


def qwen2(rng):
    return train_byte_level(rng, make.QWEN, normalizers.NFC()), {"merges": "strings"}


def qwen3_5(rng):
    return train_byte_level(rng, QWEN_MARKS, normalizers.NFC()), {"ignore_merges": True}


def olmo(rng):
    """As GPT-NeoX's."""
    tokenizer = train_byte_level(rng, None, normalizers.NFC())
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 4, -1)])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A")
    return tokenizer, {"merges": "strings"}


def olmo2(rng):
    tokenizer = train_byte_level(rng, CL100K, None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(CL100K), "removed", invert=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), prefix(tokenizer, "<|im_0|>")])
    return tokenizer, {}


def words_only(rng):
    """A pattern that drops what it does not match."""
    tokenizer = train_byte_level(rng, None, None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}| "), "removed", invert=True),
         pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)])
    return tokenizer, {}


def llama2(rng):
    """As MiniCPM's."""
    tokenizer = train_characters(rng)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_tokens(added_tokens(rng, "im_"))
    tokenizer.post_processor = prefix(tokenizer, "<s>")
    return tokenizer, {"merges": "strings"}


def llama2_first(rng):
    """As Llama's with `legacy` false."""
    tokenizer = train_characters(rng)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_tokens(added_tokens(rng, "im_"))
    tokenizer.post_processor = prefix(tokenizer, "<s>")
    return tokenizer, {"ignore_merges": True}


def metaspace_always(rng):
    tokenizer = train_characters(rng, fallback=0)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "always", split=True)
    tokenizer.decoder = decoders.Metaspace(SPACE, "always", split=True)
    tokenizer.add_tokens(added_tokens(rng, "im_"))
    return tokenizer, {}


def metaspace_never(rng):
    """Not all bytes are tokens, and each unknown character is one."""
    tokenizer = train_characters(rng, fallback=0xE5, fuse_unk=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "never", split=True)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(),
                                           decoders.Fuse()])
    tokenizer.add_tokens(added_tokens(rng, "im_"))
    return tokenizer, {"ignore_merges": True}


def metaspace_words(rng):
    """Parts in an order that no known file has."""
    tokenizer = train_characters(rng, fallback=0xE5)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("''", '"'), normalizers.NFC()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{Nd}{1,3}(?=(?:\p{Nd}{3})*(?:\P{Nd}|\s))"), "isolated"),
         pre_tokenizers.Metaspace("_", "first", split=True),
         pre_tokenizers.Split(Regex(r"\s+"), "isolated", invert=True)])
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace("_", "first"), decoders.ByteFallback(),
                                           decoders.Fuse()])
    tokenizer.add_tokens(added_tokens(rng, "im_"))
    return tokenizer, {}


CHECKPOINTS = [qwen3_5, olmo2, llama2]
FORMS = [qwen2, qwen3_5, olmo, olmo2, words_only, llama2, llama2_first, metaspace_always,
         metaspace_never, metaspace_words]


def spec(tokenizer, changes):
    """The file, with what the package cannot write."""
    out = json.loads(tokenizer.to_str())
    if changes.pop("merges", "") == "strings":
        out["model"]["merges"] = [" ".join(merge) for merge in out["model"]["merges"]]
    out["model"].update(changes)
    return out


def compositions():
    """Each mark among marks of other classes, and each character that is the same as others."""
    out = []
    for character in map(chr, [*range(0xD800), *range(0xE000, 0x30000)]):
        decomposed = unicodedata.normalize("NFD", character)
        if unicodedata.combining(character):
            out += ["q\u0323", character, "\u0334e", character, "\u0301 "]
        elif decomposed != character and not "\uac00" <= character <= "\ud7a3":
            out += [character, decomposed, "\u0323 "]
    return "".join(out)


def texts(rng, size, tokens):
    """Texts of at least `size` characters together, of one character up to some thousands,
    with `tokens`, which are added tokens."""
    mixed = make.mixed(size // 2, seed=rng.random())
    out = [compositions()]
    left = size - len(out[0])
    while left > 0:
        pieces = []
        for _ in range(rng.choice([1, 2, 5, 20, 200])):
            kind = rng.random()
            if kind < 0.5:
                at = rng.randrange(len(mixed))
                pieces.append(mixed[at:at + rng.choice([1, 3, 30, 300])])
            elif kind < 0.65:
                pieces.append(rng.choice(tokens) * rng.choice([1, 1, 2]))
            elif kind < 0.75:
                pieces.append(rng.choice(SPELLINGS))
            elif kind < 0.85:
                pieces.append("".join(rng.choices(EMOJI + CONTROLS, k=rng.randrange(1, 9))))
            elif kind < 0.92:
                pieces.append("".join(rng.choices(" \n\t_1234567890'é", k=rng.randrange(1, 12))))
            else:
                pieces.append(rng.choice(make.PROSE))
        out.append("".join(pieces))
        left -= len(out[-1])
    return out


def random_ids(rng, count, vocab_size):
    """Lists of ids as a model may draw them, so that bytes make no characters."""
    return [[rng.randrange(vocab_size) if rng.random() < 0.5 else rng.randrange(300)
             for _ in range(rng.randrange(40))] for _ in range(count)]
