#!/usr/bin/env python3
"""Converts a PyTorch checkpoint (.bin, .pt, .pth) to one that Recurve loads.

    convert_checkpoint.py SOURCE OUTPUT [--dtype TYPE] [--t6-variant NAME]

SOURCE is a file, or a folder with pytorch_model.bin, with
pytorch_model.bin.index.json and its shards, with ckpt.pt, or with one other
PyTorch file. It holds either the tensors by name or, as T6's training saves
them, {'model': tensors, 'model_args': config}. OUTPUT is a folder to be made,
or an empty one. It gets safetensors, a config.json that names the family, and
the tokenizer files that are next to SOURCE.

Files are read with weights_only: no code in them is ever run. Input that cannot
be converted is refused with the reason, and no file is left in OUTPUT.

Needs torch 2.6 or newer (older ones can be made to run code even with
weights_only), safetensors and numpy.
"""

import argparse
import json
import math
import os
import pathlib
import re
import shutil
import sys
import warnings
import zipfile

SUFFIXES = (".bin", ".pt", ".pth")
# Files that trainers write in addition to the model.
NOT_MODELS = re.compile(r"^(optimizer|scheduler|training_args|rng_state|scaler).*")
WRAPPER_KEYS = {"model", "model_args", "optimizer", "iter_num", "best_val_loss",
                "config", "scaler", "epoch", "step"}
PREFIXES = ("module.", "_orig_mod.")  # of DistributedDataParallel, torch.compile
XMIXERS = ("llama_", "linear_transformer", "tnl", "naive_hybrid")
T6_TENSOR = re.compile(r"^transformer\.h\.\d+\.attn\.c_qkv\.")
T6_VARIANTS = (
    "T6", "T6_kvonly", "T6_ropek", "T6_kvonly_ropek", "T6_partialrope",
    "T6_kvonly_partialrope", "T6_partialrope_decay",
    "T6_kvonly_partialrope_decay", "T6_linearattn_partialrope_decay",
    "T6_linearattn_kvonly_partialrope_decay")
KEPT_FILES = ("generation_config.json", "tokenizer.json", "tokenizer.model",
              "tokenizer_config.json", "special_tokens_map.json",
              "added_tokens.json", "vocab.json", "merges.txt",
              "gpt2.tiktoken", "r50k_base.tiktoken")
SUPPORTED = ("supported: T6 (tensors transformer.h.N.attn.c_qkv.*), xmixers "
             f"(model_type {', '.join(XMIXERS)}), recurve (model_type recurve)")


class Refused(Exception):
    """The input cannot be converted; the text says why."""


def main(argv=None):
    options = parse_options(argv)
    try:
        convert(options)
    except (Refused, OSError) as error:
        text = " ".join(str(error).split())
        print(f"convert_checkpoint.py: {text}", file=sys.stderr)
        return 1
    return 0


def parse_options(argv):
    parser = argparse.ArgumentParser(
        description="Converts a PyTorch checkpoint (.bin, .pt, .pth) to "
        "safetensors and a config.json that names its family.")
    parser.add_argument("source", metavar="SOURCE", type=pathlib.Path,
                        help="a PyTorch file, or a folder that holds one")
    parser.add_argument("output", metavar="OUTPUT", type=pathlib.Path,
                        help="a folder to be made, or an empty one")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"),
                        help="round every tensor to this type (default: keep)")
    parser.add_argument("--t6-variant", choices=T6_VARIANTS, metavar="NAME",
                        help="the authors' model file that a T6 checkpoint was "
                        "trained with: " + ", ".join(T6_VARIANTS))
    parser.add_argument("--config", type=pathlib.Path, metavar="FILE",
                        help="config.json, if it is not next to the source")
    parser.add_argument("--shard-bytes", type=int, default=4 << 30, metavar="N",
                        help="start another file beyond this (default: 4 GiB)")
    options = parser.parse_args(argv)
    if options.shard_bytes < 1:
        parser.error("--shard-bytes must be above 0")
    return options


def convert(options):
    check_torch()
    source, folder = find_source(options.source)
    check_output(options.output)
    tensors, model_args = read_source(source)
    config = read_config(options.config, folder, model_args)
    tensors = strip_prefixes(tensors)
    for name, tensor in tensors.items():
        check_tensor(name, tensor, options.dtype)
    config = name_family(config, tensors, options.t6_variant)
    drop_tied_head(config, tensors)
    write(options, config, tensors, folder)


def check_torch():
    try:
        import safetensors.torch  # noqa: F401
        import torch
    except ImportError as error:
        raise Refused(f"{error}; needs torch, safetensors and numpy") from None
    major, minor = (int(x) for x in torch.__version__.split(".")[:2])
    if (major, minor) < (2, 6):
        raise Refused(f"torch is {torch.__version__}; expected 2.6 or newer, "
                      "since a file can make an older one run code even with "
                      "weights_only")


def find_source(source):
    """The file to read, and the folder with its config and tokenizer."""
    if source.is_file():
        if not source.name.endswith(SUFFIXES + (".bin.index.json",)):
            raise Refused(f"{source} is no PyTorch file; expected one that ends "
                          f"in {', '.join(SUFFIXES)}")
        return source, source.parent
    if not source.is_dir():
        raise Refused(f"{source} does not exist")
    for name in ("pytorch_model.bin.index.json", "pytorch_model.bin", "ckpt.pt"):
        if (source / name).is_file():
            return source / name, source
    found = sorted(p.name for p in source.iterdir()
                   if p.name.endswith(SUFFIXES) and not NOT_MODELS.match(p.name))
    if len(found) == 1:
        return source / found[0], source
    if found:
        raise Refused(f"{source} holds several PyTorch files: "
                      f"{', '.join(found)}; name one")
    if any(source.glob("*.safetensors")):
        raise Refused(f"{source} holds safetensors, which need no conversion: "
                      "serve the folder as it is (for T6 add t6_variant to its "
                      "config.json)")
    raise Refused(f"{source} holds no PyTorch file ({', '.join(SUFFIXES)})")


def check_output(output):
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise Refused(f"{output} exists and is not an empty folder")


def read_source(source):
    """Tensors by name, and the model_args of a training checkpoint or None."""
    if source.name.endswith(".index.json"):
        return read_shards(source), None
    content = load(source)
    if not isinstance(content, dict) or not content:
        raise Refused(f"{source} holds a {type(content).__name__}; expected "
                      "tensors by name")
    model = content.get("model")
    if not isinstance(model, dict):
        return content, None
    unknown = sorted(str(key) for key in content.keys() - WRAPPER_KEYS)
    if unknown:
        raise Refused(f"{source} holds {', '.join(unknown)} in addition to the model; "
                      f"known: {', '.join(sorted(WRAPPER_KEYS))}")
    ignored = sorted(content.keys() - {"model", "model_args"})
    if ignored:
        print(f"left out: {', '.join(ignored)}")
    return model, content.get("model_args")


def read_shards(index):
    listing = read_json(index)
    weight_map = listing.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise Refused(f"{index} has no weight_map")
    tensors = {}
    for name in sorted({str(shard) for shard in weight_map.values()}):
        if pathlib.PurePath(name).name != name or not name.endswith(SUFFIXES):
            raise Refused(f"{index} names the file '{name}'; expected a "
                          "PyTorch file of the same folder")
        shard = load(index.parent / name)
        if not isinstance(shard, dict):
            raise Refused(f"{index.parent / name} holds a "
                          f"{type(shard).__name__}; expected tensors by name")
        for tensor in shard:
            if weight_map.get(tensor) != name:
                raise Refused(f"{index.parent / name} holds {tensor}, which "
                              f"{index} does not list there")
        tensors.update(shard)
    missing = sorted(weight_map.keys() - tensors.keys())
    if missing:
        raise Refused(f"{index} lists {missing[0]}, which is in no file")
    return tensors


def load(path):
    import torch
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # errors are one line
            # Only the newer, zipped format can be memory-mapped.
            return torch.load(path, map_location="cpu", weights_only=True,
                              mmap=zipfile.is_zipfile(path))
    except OSError:
        raise
    except Exception as error:  # from pickle, zipfile, torch …: any corruption
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise Refused(f"{path} cannot be read without running code from it, or "
                      f"is damaged: {reason}") from None


def read_json(path):
    """JSON as the server accepts it: Python alone accepts NaN, infinities and
    duplicate keys."""
    def refuse(text):
        raise ValueError(f"{text} is no finite number")

    def read_float(text):
        value = float(text)
        return value if math.isfinite(value) else refuse(text)

    def read_object(members):
        value = dict(members)
        if len(value) < len(members):
            keys = [key for key, _ in members]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"the key {twice!r} is there more than once")
        return value

    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"),
                           parse_constant=refuse, parse_float=read_float,
                           object_pairs_hook=read_object)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refused(f"{path} holds no JSON object")
    return value


def read_config(path, folder, model_args):
    """config.json and model_args, which must not contradict each other."""
    config = {}
    if path is not None:
        config = read_json(path)
    elif (folder / "config.json").is_file():
        path = folder / "config.json"
        config = read_json(path)
    if model_args is None:
        if not config:
            raise Refused(f"{folder} has no config.json and the checkpoint no "
                          "model_args; --config names one elsewhere")
        return config
    if not isinstance(model_args, dict):
        raise Refused(f"model_args is a {type(model_args).__name__}; expected "
                      "a dict")
    for key, value in model_args.items():
        if value is None:
            continue
        if not isinstance(value, (bool, int, float, str)):
            raise Refused(f"model_args.{key} is a {type(value).__name__}; "
                          "expected a number, a boolean or a string")
        if isinstance(value, float) and not math.isfinite(value):
            raise Refused(f"model_args.{key} is {value}; expected a finite "
                          "number")
        if config.get(key, value) != value:
            raise Refused(f"{key} is {config[key]!r} in {path} and {value!r} "
                          "in model_args")
        config[key] = value
    return config


def strip_prefixes(tensors):
    for name in tensors:
        if not isinstance(name, str):
            raise Refused(f"a tensor is named by the {type(name).__name__} "
                          f"{name!r}; expected a string")
    while True:
        prefix = next((p for p in PREFIXES
                       if any(name.startswith(p) for name in tensors)), None)
        if prefix is None:
            return dict(tensors)
        other = [name for name in tensors if not name.startswith(prefix)]
        if other:
            raise Refused(f"some tensors begin with '{prefix}' and {other[0]} "
                          "does not")
        tensors = {name[len(prefix):]: t for name, t in tensors.items()}


def check_tensor(name, tensor, dtype):
    import torch
    if not isinstance(tensor, torch.Tensor):
        raise Refused(f"{name} is a {type(tensor).__name__}; expected a tensor")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise Refused(f"{name} is sparse, quantized or without data; expected "
                      "a plain tensor")
    kept = (torch.float32, torch.float16, torch.bfloat16)
    if tensor.dtype not in kept + (torch.float64,):
        raise Refused(f"{name} is {tensor.dtype}; expected float32, float16 or "
                      "bfloat16")
    if tensor.dtype == torch.float64 and dtype is None:
        raise Refused(f"{name} is float64; --dtype says what to round it to")
    check_finite(name, tensor)


def check_finite(name, tensor, what="is"):
    import torch
    finite = torch.isfinite(tensor)
    if bool(finite.all()):
        return
    index = (~finite).nonzero()[0].tolist()
    raise Refused(f"{name}{index} {what} {tensor[tuple(index)].item()}; "
                  "expected a finite number")


def name_family(config, tensors, variant):
    """The config with the keys by which Recurve recognises the family."""
    model_type = config.get("model_type")
    if any(T6_TENSOR.match(name) for name in tensors):
        return name_t6(config, tensors, variant)
    if variant is not None:
        raise Refused("--t6-variant is given, but no tensor is named "
                      "transformer.h.N.attn.c_qkv.*")
    if model_type in XMIXERS + ("recurve",):
        if "model.embed_tokens.weight" not in tensors:
            raise Refused(f"model_type is {model_type}, but there is no tensor "
                          "model.embed_tokens.weight")
        return config
    raise Refused(f"model_type is {model_type!r} and the first tensor "
                  f"{next(iter(tensors), None)}, which is no known family; "
                  f"{SUPPORTED}")


def name_t6(config, tensors, variant):
    kv_only = any(".c_qkv.c_q." in name for name in tensors)
    stated = config.get("t6_variant")
    if None not in (stated, variant) and stated != variant:
        raise Refused(f"--t6-variant is {variant}, config.json says {stated}")
    variant = variant or stated
    if variant is None:
        rope = [k for k in ("rope_partial_factor", "rope_decay_base") if k in config]
        if rope:
            raise Refused(f"config.json has {rope[0]}; --t6-variant must say "
                          "which of the partial rope variants this is")
        variant = "T6_kvonly" if kv_only else "T6"
        print(f"t6_variant: {variant}. The tensors' names do not tell it from "
              "the ropek, partialrope, decay and linearattn variants; "
              "--t6-variant does.")
    if variant not in T6_VARIANTS:
        raise Refused(f"t6_variant is {variant!r}; known: {', '.join(T6_VARIANTS)}")
    if ("kvonly" in variant) != kv_only:
        raise Refused(f"t6_variant is {variant}, but the checkpoint "
                      + ("has" if kv_only else "lacks") + " the tensor "
                      "transformer.h.0.attn.c_qkv.c_q.weight")
    return {**config, "architectures": ["GPT"], "model_type": "gpt2",
            "t6_variant": variant}


def drop_tied_head(config, tensors):
    import torch
    t6 = "t6_variant" in config
    if "lm_head.weight" not in tensors:
        return
    if not t6 and not config.get("tie_word_embeddings", False):
        return
    embedding = "transformer.wte.weight" if t6 else "model.embed_tokens.weight"
    head, table = tensors["lm_head.weight"], tensors.get(embedding)
    if table is not None and not torch.equal(head, table):
        raise Refused(f"lm_head.weight and {embedding} differ; this model ties "
                      "them")
    if table is None:
        tensors[embedding] = head
    del tensors["lm_head.weight"]


def plan_shards(tensors, sizes, limit):
    shards = [[]]
    room = limit
    for name in tensors:
        if shards[-1] and sizes[name] > room:
            shards.append([])
            room = limit
        shards[-1].append(name)
        room -= sizes[name]
    return shards


def write(options, config, tensors, folder):
    import torch
    dtype = getattr(torch, options.dtype) if options.dtype else None
    sizes = {name: t.numel() * (dtype or t.dtype).itemsize
             for name, t in tensors.items()}
    types = {str(dtype or t.dtype).removeprefix("torch.") for t in tensors.values()}
    config = dict(config)
    config.pop("dtype", None)
    config.pop("torch_dtype", None)
    if len(types) == 1:
        config["torch_dtype"] = types.pop()

    output = options.output
    made = not output.exists()
    output.mkdir(parents=True, exist_ok=True)
    try:
        total = sum(sizes.values())
        free = shutil.disk_usage(output).free
        if free < total + (16 << 20):
            raise Refused(f"{output} has room for {free} bytes; the weights "
                          f"need {total}")
        shards = plan_shards(tensors, sizes, options.shard_bytes)
        write_weights(output, tensors, shards, total, dtype)
        for name in KEPT_FILES:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, output / name)
        # Last: a folder without it is no checkpoint.
        write_json(output / "config.json", config)
    except BaseException:
        for path in output.iterdir():
            path.unlink()
        if made:
            output.rmdir()
        raise
    print(f"{output}: {config['model_type']}"
          + (f" ({config['t6_variant']})" if "t6_variant" in config else "")
          + f", {len(tensors)} tensors, {total} bytes in {len(shards)} "
          + ("file" if len(shards) == 1 else "files"))


def write_weights(output, tensors, shards, total, dtype):
    from safetensors.torch import save_file
    weight_map = {}
    for i, names in enumerate(shards):
        file = ("model.safetensors" if len(shards) == 1 else
                f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors")
        content = {}
        for name in names:
            tensor = tensors[name]
            if dtype is not None and tensor.dtype != dtype:
                tensor = tensor.to(dtype)
                check_finite(name, tensor, f"becomes, as {dtype},")
            # A copy: tensors that share memory cannot be saved otherwise.
            content[name] = tensor.detach().contiguous().clone()
            weight_map[name] = file
        save_file(content, output / file, metadata={"format": "pt"})
        # The library makes files readable only by their owner.
        umask = os.umask(0)
        os.umask(umask)
        (output / file).chmod(0o666 & ~umask)
    if len(shards) > 1:
        write_json(output / "model.safetensors.index.json",
                   {"metadata": {"total_size": total}, "weight_map": weight_map})


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n",
                    encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
