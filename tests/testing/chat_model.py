"""Makes a small chat checkpoint whose answers are known, for tests with other programs.

The layers add nothing to a token's embedding, and the head maps each token to one successor: a
greedy answer is a walk through NEXT from the prompt's last token, which the chat template sets.
Pages and recurrent states are there as in any hybrid, so that prefix caches have what they store.
"""
import json
import struct
from pathlib import Path

END_OF_TEXT, IM_START, IM_END = 256, 257, 258
# Ids above the 256 bytes, with their texts: special ones, and pieces of answers.
SPECIAL = {END_OF_TEXT: "<|endoftext|>", IM_START: "<|im_start|>", IM_END: "<|im_end|>",
           259: "<|answer|>", 260: "<|use_tools|>"}
ANSWER = {261: "Hello", 262: ", ", 263: "world", 264: "!!"}
TOOL_CALL = {265: "<tool_call>", 266: '\n{"name": "get_weather", ', 267: '"arguments": ',
             268: '{"city": "Paris"', 269: "}}\n", 270: "</tool_call>"}
VOCAB = HIDDEN = 320

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if tools %}<|use_tools|>{% else %}<|answer|>{% endif %}{% endif %}")


def _walk(start, pieces):
    """The successors on a way from `start` over the pieces to the end of the message."""
    way = [start, *pieces, IM_END]
    return dict(zip(way, way[1:]))


# After the end of a message an answer begins again, for requests that ignore it.
NEXT = {**{i: ord("a") for i in range(VOCAB)}, **_walk(259, ANSWER), **_walk(260, TOOL_CALL),
        IM_END: next(iter(ANSWER))}


def _matrix(rows, columns, ones=()):
    """bfloat16, with ones at some places and zeros elsewhere."""
    data = bytearray(2 * rows * columns)
    for row, column in ones:
        struct.pack_into("<H", data, 2 * (row * columns + column), 0x3F80)
    return [rows, columns], bytes(data)


def _vector(size):
    return [size], struct.pack("<H", 0x3F80) * size


def _tensors(layers, inner):
    heads, dim = 4, 16
    tensors = {
        "model.embed_tokens.weight": _matrix(VOCAB, HIDDEN, [(i, i) for i in range(VOCAB)]),
        "lm_head.weight": _matrix(VOCAB, HIDDEN, [(after, i) for i, after in NEXT.items()]),
        "model.final_norm.weight": _vector(HIDDEN),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        mixer = prefix + "token_mixer."
        tensors[prefix + "token_norm.weight"] = _vector(HIDDEN)
        tensors[prefix + "channel_norm.weight"] = _vector(HIDDEN)
        for name in ("w1", "w2"):
            tensors[prefix + f"channel_mixer.{name}.weight"] = _matrix(inner, HIDDEN)
        tensors[prefix + "channel_mixer.w3.weight"] = _matrix(HIDDEN, inner)
        tensors[mixer + "o_proj.weight"] = _matrix(HIDDEN, heads * dim)
        rows = {"q_proj": heads * dim, "k_proj": heads * dim, "v_proj": heads * dim}
        if layer % 2 == 0:
            rows = {"q_proj": heads * dim, "k_proj": dim, "v_proj": dim,
                    "k_head_proj": heads, "v_head_proj": heads}
        else:
            tensors[mixer + "norm.weight"] = _vector(heads * dim)
        for name, count in rows.items():
            tensors[mixer + f"{name}.weight"] = _matrix(count, HIDDEN)
    return tensors


def _write_safetensors(path, layers, inner):
    header, data = {}, b""
    for name, (shape, values) in _tensors(layers, inner).items():
        header[name] = {"dtype": "BF16", "shape": shape,
                        "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def _byte_characters():
    """The character that a byte-level tokenizer.json has for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]


def _tokenizer():
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": i in SPECIAL}
             for i, text in {**SPECIAL, **ANSWER, **TOOL_CALL}.items()]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {c: i for i, c in enumerate(_byte_characters())}, "merges": []}}


def write_chat_model(folder, layers=2, inner=64):
    """Writes the checkpoint into a new folder. More layers, and a greater inner size, make it
    slower and change no answer."""
    folder = Path(folder)
    folder.mkdir()
    shape = {"num_heads": 4, "head_dim": 16}
    config = {
        "model_type": "recurve", "architectures": ["RecurveForCausalLM"], "vocab_size": VOCAB,
        "hidden_size": HIDDEN, "intermediate_size": inner, "num_hidden_layers": layers,
        "max_position_embeddings": 65536, "bos_token_id": END_OF_TEXT, "eos_token_id": IM_END,
        "pad_token_id": END_OF_TEXT,
        "layers": [{"mixer": "linear", **shape} if layer % 2 else
                   {"mixer": "tpa", "q_rank": 0, "kv_rank": 1, **shape}
                   for layer in range(layers)],
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[END_OF_TEXT],
        "eos_token": SPECIAL[IM_END], "chat_template": TEMPLATE}))
    _write_safetensors(folder / "model.safetensors", layers, inner)
