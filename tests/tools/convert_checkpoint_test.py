"""Tests tools/convert_checkpoint.py. Argument: the program recurve-model, or
nothing, which leaves out the tests that need it. Exit status 77, and a line
that says why, where torch or safetensors are missing."""

import contextlib
import importlib.util
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy  # noqa: F401
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
if tuple(int(x) for x in torch.__version__.split(".")[:2]) < (2, 6):
    print(f"skipped: torch is {torch.__version__}, the converter needs 2.6")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None
DEMO = ROOT / "deploy/models/demo"
spec = importlib.util.spec_from_file_location(
    "convert_checkpoint", ROOT / "tools/convert_checkpoint.py")
converter = importlib.util.module_from_spec(spec)
spec.loader.exec_module(converter)

C, H, D, RANK, VOCAB = 6, 3, 4, 2, 16
ARGS = {"n_layer": 1, "n_head": H, "n_embd": C, "head_dim": D, "rank": RANK,
        "q_rank": 3, "block_size": 32, "vocab_size": VOCAB, "bias": False,
        "dropout": 0.0, "using_groupnorm": False}


def t6_tensors(kv_only=False):
    torch.manual_seed(1)
    inner = 8 * C // 3
    shapes = {"transformer.wte": (VOCAB, C),
              "transformer.h.0.attn.c_proj": (C, H * D),
              "transformer.h.0.mlp.c_fc1": (inner, C),
              "transformer.h.0.mlp.c_fc2": (inner, C),
              "transformer.h.0.mlp.c_proj": (C, inner)}
    qkv = "transformer.h.0.attn.c_qkv."
    if kv_only:
        shapes[qkv + "c_q"] = (H * D, C)
    else:
        shapes[qkv + "W_A_q"] = (H * 3, C)
        shapes[qkv + "W_B_q"] = (3 * D, C)
    for x in "kv":
        shapes[qkv + "W_A_" + x] = (H * RANK, C)
        shapes[qkv + "W_B_" + x] = (RANK * D, C)
    tensors = {n + ".weight": torch.randn(s) for n, s in shapes.items()}
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    return tensors


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


class ConvertTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.source = pathlib.Path(folder.name) / "source"
        self.output = pathlib.Path(folder.name) / "output"
        self.source.mkdir()

    def run_main(self, *arguments, source=None):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = converter.main(
                [str(source or self.source), str(self.output), *arguments])
        return status, out.getvalue(), err.getvalue()

    def convert(self, *arguments, source=None):
        status, out, err = self.run_main(*arguments, source=source)
        self.assertEqual((status, err), (0, ""))
        config = json.loads((self.output / "config.json").read_text())
        return config, out

    def assert_refused(self, *parts, arguments=(), source=None):
        status, _, err = self.run_main(*arguments, source=source)
        self.assertEqual(status, 1)
        self.assertTrue(err.startswith("convert_checkpoint.py: "), err)
        self.assertEqual(err.count("\n"), 1, err)
        for part in parts:
            self.assertIn(part, err)
        self.assertFalse(self.output.exists())

    def write_config(self, config):
        (self.source / "config.json").write_text(json.dumps(config))

    def save_t6(self, name="pytorch_model.bin", **options):
        tensors = t6_tensors(**options)
        torch.save(tensors, self.source / name)
        self.write_config({**ARGS, "model_type": "gpt2"})
        return tensors

    def assert_same_bytes(self, expected):
        found = load_file(self.output / "model.safetensors")
        self.assertEqual(set(found), set(expected))
        for name, tensor in expected.items():
            self.assertEqual(found[name].dtype, tensor.dtype, name)
            self.assertEqual(found[name].shape, tensor.shape, name)
            self.assertEqual(raw(found[name]), raw(tensor), name)

    def test_t6_bin(self):
        expected = self.save_t6()
        config, _ = self.convert("--t6-variant", "T6_ropek")
        self.assertEqual(config["t6_variant"], "T6_ropek")
        self.assertEqual(config["n_head"], H)
        self.assertEqual(config["torch_dtype"], "float32")
        del expected["lm_head.weight"]
        self.assert_same_bytes(expected)

    def test_t6_without_a_variant_says_what_it_takes(self):
        self.save_t6(kv_only=True)
        config, out = self.convert()
        self.assertEqual(config["t6_variant"], "T6_kvonly")
        self.assertIn("--t6-variant", out)

    def test_training_checkpoint(self):
        for prefix in ("_orig_mod.", "module.", "module._orig_mod.",
                       "_orig_mod.module."):
            with self.subTest(prefix):
                expected = t6_tensors()
                torch.save({"model": {prefix + n: t for n, t in expected.items()},
                            "model_args": {**ARGS, "ignored": None},
                            "optimizer": {"state": {}}, "iter_num": 7},
                           self.source / "ckpt.pt")
                config, out = self.convert()
                self.assertEqual(config, {**ARGS, "architectures": ["GPT"],
                                          "model_type": "gpt2",
                                          "t6_variant": "T6",
                                          "torch_dtype": "float32"})
                self.assertIn("left out: iter_num, optimizer", out)
                del expected["lm_head.weight"]
                self.assert_same_bytes(expected)
                for path in self.output.iterdir():
                    path.unlink()

    def test_old_format_and_views(self):
        base = torch.arange(float(VOCAB * C))
        expected = t6_tensors()
        expected["transformer.wte.weight"] = base.view(C, VOCAB).T
        expected["lm_head.weight"] = base.view(C, VOCAB).T
        torch.save(expected, self.source / "x.pth",
                   _use_new_zipfile_serialization=False)
        self.write_config(ARGS)
        self.convert()
        del expected["lm_head.weight"]
        self.assert_same_bytes(expected)

    def test_shards_in_and_out(self):
        tensors = self.save_t6()
        (self.source / "pytorch_model.bin").unlink()
        names = sorted(tensors)
        weight_map = {}
        for i in range(2):
            file = f"pytorch_model-0000{i + 1}-of-00002.bin"
            torch.save({n: tensors[n] for n in names[i::2]}, self.source / file)
            weight_map.update({n: file for n in names[i::2]})
        index = self.source / "pytorch_model.bin.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))
        self.convert("--shard-bytes", "500")
        listing = json.loads(
            (self.output / "model.safetensors.index.json").read_text())
        del tensors["lm_head.weight"]
        self.assertEqual(set(listing["weight_map"]), set(tensors))
        self.assertGreater(len(set(listing["weight_map"].values())), 2)
        self.assertEqual(listing["metadata"]["total_size"],
                         sum(4 * t.numel() for t in tensors.values()))
        for name, file in listing["weight_map"].items():
            with safe_open(self.output / file, "pt") as shard:
                self.assertEqual(raw(shard.get_tensor(name)), raw(tensors[name]))

        def relist(name, file):
            for path in self.output.iterdir():
                path.unlink()
            self.output.rmdir()
            index.write_text(json.dumps(
                {"weight_map": {**weight_map, name: file}}))

        relist("more", "pytorch_model-00001-of-00002.bin")
        self.assert_refused("lists more")
        index.write_text(json.dumps({"weight_map": {"a": "../x.bin"}}))
        self.assert_refused("../x.bin")

    def test_dtypes(self):
        tensors = self.save_t6()
        for name in ("float16", "bfloat16"):
            config, _ = self.convert("--dtype", name)
            self.assertEqual(config["torch_dtype"], name)
            expected = {n: t.to(getattr(torch, name)) for n, t in tensors.items()
                        if n != "lm_head.weight"}
            self.assert_same_bytes(expected)
            for path in self.output.iterdir():
                path.unlink()
        self.output.rmdir()
        tensors["transformer.h.0.attn.c_proj.weight"] = torch.full(
            (C, H * D), 1e6)
        torch.save(tensors, self.source / "pytorch_model.bin")
        self.assert_refused("c_proj.weight[0, 0] becomes", "inf",
                            arguments=("--dtype", "float16"))
        tensors["transformer.h.0.attn.c_proj.weight"] = torch.zeros(
            C, H * D, dtype=torch.float64)
        torch.save(tensors, self.source / "pytorch_model.bin")
        self.assert_refused("float64", "--dtype")

    def test_keeps_tokenizer_files(self):
        self.save_t6()
        for name in ("tokenizer.json", "merges.txt", "generation_config.json"):
            (self.source / name).write_text(f'"{name}"')
        (self.source / "notes.txt").write_text("mine")
        (self.source / "optimizer.pt").write_text("not read")
        self.convert()
        self.assertEqual({p.name for p in self.output.iterdir()},
                         {"config.json", "model.safetensors", "tokenizer.json",
                          "merges.txt", "generation_config.json"})
        self.assertEqual((self.output / "merges.txt").read_text(),
                         '"merges.txt"')

    def test_xmixers_head(self):
        tensors = {"model.embed_tokens.weight": torch.ones(4, 2),
                   "lm_head.weight": torch.ones(4, 2)}
        torch.save(tensors, self.source / "pytorch_model.bin")
        self.write_config({"model_type": "tnl"})
        self.convert()
        self.assert_same_bytes(tensors)
        for path in self.output.iterdir():
            path.unlink()
        self.write_config({"model_type": "tnl", "tie_word_embeddings": True})
        self.convert()
        self.assert_same_bytes(
            {"model.embed_tokens.weight": torch.ones(4, 2)})

    def test_refuses_pickles_that_need_code(self):
        class Evil:
            def __reduce__(self):
                return (print, ("this must not run",))

        torch.save({"a": Evil()}, self.source / "model.bin")
        self.write_config(ARGS)
        status, out, err = self.run_main()
        self.assertEqual(status, 1)
        self.assertNotIn("this must not run", out)
        self.assertIn("model.bin cannot be read without running code", err)
        (self.source / "model.bin").write_bytes(b"PK\3\4 damaged")
        self.assert_refused("model.bin")

    def test_refuses_what_is_no_model(self):
        self.write_config(ARGS)
        path = self.source / "model.pt"
        for content, parts in (
                ([torch.zeros(1)], ("holds a list",)),
                ({}, ("expected tensors by name",)),
                ({"a": 3}, ("a is a int",)),
                ({7: torch.zeros(1)}, ("named by the int 7",)),
                ({"a": torch.zeros(2, dtype=torch.int64)}, ("torch.int64",)),
                ({"a": torch.zeros(2, 2).to_sparse()}, ("sparse",)),
                ({"a": torch.tensor([1.0, float("nan")])}, ("a[1] is nan",)),
                ({"module.a": torch.zeros(1), "b": torch.zeros(1)},
                 ("begin with 'module.'", "b does not")),
                ({"model": {}, "state": 1}, ("holds state in addition to the model",)),
                ({"model": {"a": torch.zeros(1)}, "model_args": [1]},
                 ("model_args is a list",)),
                ({"model": {"a": torch.zeros(1)}, "model_args": {"x": [1]}},
                 ("model_args.x is a list",)),
                ({"model": {"a": torch.zeros(1)},
                  "model_args": {"dropout": float("nan")}},
                 ("model_args.dropout is nan; expected a finite number",)),
                ({"model": {"a": torch.zeros(1)},
                  "model_args": {"scale": float("-inf")}},
                 ("model_args.scale is -inf",)),
                ({"model": {"a": torch.zeros(1)}, "model_args": {"n_head": 9}},
                 ("n_head is 3", "9 in model_args")),
        ):
            with self.subTest(parts[0]):
                torch.save(content, path)
                self.assert_refused(*parts)

    def test_reads_configs_as_the_server_does(self):
        self.save_t6()
        path = self.source / "config.json"
        text = path.read_text()
        for member, problem in (
                ('"x": NaN', "NaN is no finite number"),
                ('"x": [-Infinity]', "-Infinity is no finite number"),
                ('"x": 1e999', "1e999 is no finite number"),
                ('"n_head": 3', "the key 'n_head' is there more than once"),
                ('"x": {"a": 1, "a": 1}', "the key 'a' is there more than"),
                ('"x": ' + "[" * 100000 + "]" * 100000, "config.json"),
        ):
            with self.subTest(member[:20]):
                path.write_text("{" + member + ", " + text[1:])
                self.assert_refused("config.json is not valid JSON", problem)
        path.write_text("\ufeff" + text, encoding="utf-8")
        config, _ = self.convert()
        self.assertEqual(config["n_head"], H)

    def test_refuses_other_families(self):
        torch.save({"gpt_neox.x": torch.zeros(1)}, self.source / "model.bin")
        self.assert_refused("no config.json", "--config")
        self.write_config({"model_type": "gpt_neox"})
        self.assert_refused("'gpt_neox'", "supported: T6", "naive_hybrid")
        self.assert_refused("--t6-variant is given",
                            arguments=("--t6-variant", "T6"))

    def test_refuses_contradictions_in_t6(self):
        tensors = self.save_t6()
        self.assert_refused("T6_kvonly", "lacks", "c_q.weight",
                            arguments=("--t6-variant", "T6_kvonly"))
        self.write_config({**ARGS, "t6_variant": "T6_ropek"})
        self.assert_refused("config.json says T6_ropek",
                            arguments=("--t6-variant", "T6"))
        self.write_config({**ARGS, "t6_variant": "T6_infer"})
        self.assert_refused("'T6_infer'", "known: T6")
        self.write_config({**ARGS, "rope_decay_base": 0.99})
        self.assert_refused("rope_decay_base", "--t6-variant")
        self.write_config(ARGS)
        tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
        torch.save(tensors, self.source / "pytorch_model.bin")
        self.assert_refused("lm_head.weight", "differ")

    def test_refuses_folders(self):
        self.assert_refused("holds no PyTorch file")
        self.assert_refused("does not exist", source=self.source / "nowhere")
        save_file({"a": torch.zeros(1)}, self.source / "model.safetensors")
        self.assert_refused("safetensors, which need no conversion")
        for name in ("a.bin", "b.pt"):
            (self.source / name).write_text("")
        self.assert_refused("several PyTorch files: a.bin, b.pt")
        self.save_t6()
        self.output.mkdir()
        (self.output / "mine").write_text("kept")
        status, _, err = self.run_main()
        self.assertEqual(status, 1)
        self.assertIn("not an empty folder", err)
        self.assertEqual((self.output / "mine").read_text(), "kept")

    @unittest.skipIf(TOOL is None, "no recurve-model given")
    def test_recurve_model_reads_the_result(self):
        tensors = load_file(DEMO / "model.safetensors")
        torch.save(tensors, self.source / "pytorch_model.bin")
        self.convert("--config", str(DEMO / "config.json"),
                     "--shard-bytes", "3000000")
        result = subprocess.run([TOOL, "info", self.output, "--json"],
                                capture_output=True, text=True, check=False)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        facts = json.loads(result.stdout)
        self.assertEqual(facts["family"], "recurve")
        self.assertEqual(facts["parameters"],
                         sum(t.numel() for t in tensors.values()))
        self.assertEqual(facts["files"], 4)


if __name__ == "__main__":
    unittest.main()
