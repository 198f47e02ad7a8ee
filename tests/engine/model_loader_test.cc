#include "engine/loading/model_loader.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/checkpoint/checkpoint.h"
#include "engine/cpu/cpu_executor.h"
#include "engine/models/decoder.h"
#include "engine/models/emit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/testing/status_codes.h"

namespace recurve {
namespace {

class ModelLoaderTest : public testing::Test {
 protected:
  ModelLoaderTest() {
    options_.path = folder_.path() + "/model";
    options_.num_threads = 1;
    options_.device = "cpu";
    engine_.max_num_seqs = 4;
    tiny_.Write(options_.path);
  }

  absl::StatusOr<LoadedModel> Load() { return LoadModel(options_, &engine_); }
  absl::Status Status() { return Load().status(); }

  TempFolder folder_;
  TinyCheckpoint tiny_ = TinyCheckpoint::Hybrid();
  ModelOptions options_;
  EngineOptions engine_;
};

TEST_F(ModelLoaderTest, SaysWhatItLoaded) {
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const ModelInfo& info = loaded->runner->info();
  EXPECT_EQ(info.family, "recurve");
  EXPECT_EQ(info.num_layers, 2);
  EXPECT_THAT(info.mixers, testing::ElementsAre("tpa", "linear"));
  EXPECT_EQ(info.device, "cpu");
  EXPECT_EQ(info.weight_dtype, "float32");
  EXPECT_EQ(info.state_dtype, "float32");
  EXPECT_EQ(info.kv_dtype, "float32");
  ASSERT_NE(loaded->tokenizer, nullptr);
  EXPECT_EQ(loaded->tokenizer->name(), "bytes");
  // Everything the model supports, for every sequence.
  EXPECT_EQ(engine_.max_model_len, 256);
  EXPECT_EQ(loaded->capacity.max_model_len, 256);
  EXPECT_FALSE(loaded->capacity.max_model_len_reduced);
  EXPECT_EQ(loaded->capacity.num_pages, 16);
  EXPECT_EQ(loaded->capacity.num_slots, 4);
  // 2 ranks of (2 heads + 8) for keys and values; 2 heads of 12 by 8.
  EXPECT_EQ(loaded->capacity.cache_bytes_per_token, 2 * 2 * (2 + 8) * 4);
  EXPECT_EQ(loaded->capacity.state_bytes_per_sequence, 2 * 12 * 8 * 4);
  const CacheSpec spec = loaded->runner->cache_spec();
  EXPECT_EQ(spec.num_pages, 16);
  EXPECT_EQ(spec.num_slots, 4);
  EXPECT_EQ(spec.page_bytes, 64 * loaded->capacity.cache_bytes_per_token);
  EXPECT_EQ(spec.slot_bytes, loaded->capacity.state_bytes_per_sequence);
}

TEST_F(ModelLoaderTest, AModelWithoutATokenizer) {
  tiny_.config.erase("tokenizer");
  tiny_.Write(options_.path);
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->tokenizer, nullptr);
  // One that only its file tells.
  std::ofstream(options_.path + "/vocab.json") << R"({"a":0,"b":1,"ab":2})";
  std::ofstream(options_.path + "/merges.txt") << "a b\n";
  const auto with_file = Load();
  ASSERT_TRUE(with_file.ok()) << with_file.status();
  ASSERT_NE(with_file->tokenizer, nullptr);
  EXPECT_EQ(with_file->runner->info().tokenizer, "gpt2");
  tiny_.config["tokenizer"] = "sentences";
  tiny_.Write(options_.path);
  EXPECT_THAT(Status(), FailsWith(kInvalid, options_.path,
                                  "/config.json: tokenizer is 'sentences'; "
                                  "supported: bytes, "));
  // The flag wins, and an error names what was said.
  options_.tokenizer = "words";
  EXPECT_THAT(Status(), FailsWith(kInvalid, "--tokenizer is 'words'; "));
}

TEST_F(ModelLoaderTest, AnEndOfSequenceThatOnlyTheTokenizerNames) {
  tiny_.config.erase("eos_token_id");
  tiny_.Write(options_.path);
  auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->runner->info().eos_token_ids, testing::IsEmpty());
  EXPECT_THAT(loaded->runner->info().remarks,
              testing::Contains(testing::HasSubstr("no file names an end")));
  folder_.Write("model/tokenizer_config.json",
                R"({"eos_token": "<end>",
                    "added_tokens_decoder": {"259": {"content": "<end>"}}})");
  loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const ModelInfo& info = loaded->runner->info();
  EXPECT_THAT(info.eos_token_ids, testing::ElementsAre(259));
  EXPECT_THAT(info.eos_file_of_tokenizer,
              testing::HasSubstr("/tokenizer_config.json"));
  EXPECT_THAT(info.remarks, testing::IsEmpty());
}

TEST_F(ModelLoaderTest, TellsWhichEndOfSequenceDoesNotCount) {
  const auto remarks = [&](const char* generation) {
    tiny_.Write(options_.path);
    folder_.Write("model/generation_config.json", generation);
    const auto loaded = Load();
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? loaded->runner->info().remarks
                       : std::vector<std::string>();
  };
  tiny_.config["eos_token_id"] = {257, 258};
  EXPECT_THAT(remarks(R"({"eos_token_id": [258, 257]})"), testing::IsEmpty());
  EXPECT_THAT(remarks(R"({"eos_token_id": 257})"),
              testing::ElementsAre(testing::HasSubstr(
                  "/config.json: eos_token_id has 258, which")));
  tiny_.config["eos_token_id"] = -1;
  EXPECT_THAT(remarks(R"({"eos_token_id": 257})"),
              testing::ElementsAre(
                  testing::HasSubstr("/config.json: eos_token_id is -1")));
}

TEST_F(ModelLoaderTest, NamesTheFileOfATokenThatIsAByte) {
  tiny_.config["eos_token_id"] = 10;
  tiny_.Write(options_.path);
  EXPECT_THAT(Status(), FailsWith(kInvalid, options_.path,
                                  "/config.json: eos_token_id is 10"));
  folder_.Write("model/generation_config.json", R"({"eos_token_id": [11]})");
  EXPECT_THAT(Status(),
              FailsWith(kInvalid, options_.path,
                        "/generation_config.json: eos_token_id is 11"));
}

TEST_F(ModelLoaderTest, WeightTypes) {
  const auto dtype_of = [&](const char* option) {
    options_.dtype = option;
    const auto loaded = Load();
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? loaded->runner->info().weight_dtype : "";
  };
  EXPECT_EQ(dtype_of("auto"), "float32");
  EXPECT_EQ(dtype_of("bfloat16"), "bfloat16");
  tiny_.SetDType(DType::kBFloat16);
  tiny_.Write(options_.path);
  EXPECT_EQ(dtype_of("auto"), "bfloat16");
  EXPECT_EQ(dtype_of("float32"), "float32");
  tiny_.SetDType(DType::kFloat16);
  tiny_.Write(options_.path);
  EXPECT_EQ(dtype_of("auto"), "float32");
}

// Only matrices are held in the type that is asked for.
TEST_F(ModelLoaderTest, RefusesMatricesThatATypeCannotHold) {
  for (const size_t rank : {1, 2}) {
    TinyCheckpoint tiny = tiny_;
    const auto tensor = std::find_if(
        tiny.tensors.begin(), tiny.tensors.end(),
        [&](const auto& entry) { return entry.second.shape.size() == rank; });
    ASSERT_NE(tensor, tiny.tensors.end());
    tensor->second.values[1] = -3.4e38f;
    tiny.Write(options_.path);
    options_.dtype = "float32";
    EXPECT_TRUE(Status().ok()) << Status();
    options_.dtype = "auto";
    EXPECT_TRUE(Status().ok()) << Status();
    options_.dtype = "bfloat16";
    if (rank == 1) {
      EXPECT_TRUE(Status().ok()) << Status();
    } else {
      EXPECT_THAT(Status(), FailsWith(kInvalid, "--dtype is bfloat16",
                                      "model.safetensors", tensor->first,
                                      "[0, 1] is -3.4e+38"));
    }
  }
}

TEST_F(ModelLoaderTest, RefusesOptionsWithTheirChoices) {
#ifndef RECURVE_HAVE_CUDA
  options_.device = "cuda";
  EXPECT_THAT(Status(), FailsWith(kInvalid, "--device is cuda", "auto, cpu"));
#endif
  options_.device = "gpu0";
  EXPECT_THAT(Status(), FailsWith(kInvalid, "--device is gpu0"));
  options_.device = "cpu";
  options_.dtype = "float16";
  EXPECT_THAT(Status(), FailsWith(kInvalid, "--dtype is float16",
                                  "auto, float32, bfloat16"));
  options_.dtype = "";
  EXPECT_THAT(Status(), FailsWith(kInvalid, "--dtype"));
  options_.dtype = "auto";
  options_.state_dtype = "bfloat16";
  EXPECT_THAT(Status(), FailsWith(kInvalid, "--state-dtype is bfloat16"));
  options_.state_dtype = "float32";
  options_.kv_dtype = "int8";
  EXPECT_THAT(Status(), FailsWith(kInvalid, "--kv-dtype is int8"));
  options_.kv_dtype = "float32";
  options_.exact = false;
  EXPECT_THAT(Status(), FailsWith(kInvalid, "--exact is off"));
  options_.exact = true;
  for (int threads : {-1, 1025}) {
    options_.num_threads = threads;
    EXPECT_THAT(Status(), FailsWith(kInvalid, "--num-threads", "0 to 1024"));
  }
  options_.num_threads = 1;
  EXPECT_TRUE(Status().ok());
}

TEST_F(ModelLoaderTest, MaxModelLenStaysWithinTheModel) {
  engine_.max_model_len = 256;
  EXPECT_TRUE(Status().ok());
  engine_.max_model_len = 257;
  EXPECT_THAT(Status(), FailsWith(kInvalid, "--max-model-len is 257", "256"));
  engine_.max_model_len = -1;
  EXPECT_THAT(Status(), FailsWith(kInvalid, "--max-model-len is -1"));
  engine_.max_model_len = 100;
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->capacity.num_pages, 8);  // two for each
}

TEST_F(ModelLoaderTest, SwapBytesTakeASequenceOrNothing) {
  options_.swap_bytes_required = true;
  options_.swap_bytes = 0;
  EXPECT_TRUE(Status().ok());
  options_.swap_bytes = 1;
  EXPECT_THAT(Status(), FailsWith(kInvalid, "--swap-bytes is 1; one sequence"));
  options_.swap_bytes = -1;
  EXPECT_THAT(Status(), FailsWith(kInvalid, "--swap-bytes is -1; expected 0"));
  // A default that is too small saves nothing.
  options_.swap_bytes = 1;
  options_.swap_bytes_required = false;
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->runner->cache_spec().num_host_blocks, 0);
}

// Reading and loading weights may take minutes: what comes of it is told first.
TEST_F(ModelLoaderTest, TellsTheCapacityBeforeItReadsAMatrix) {
  std::string device;
  std::optional<Capacity> told;
  const auto load = [&] {
    told.reset();
    return LoadModel(options_, &engine_,
                     [&](const std::string& on, const Capacity& capacity) {
                       device = on;
                       told = capacity;
                     });
  };
  const auto loaded = load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(device, loaded->device);
  EXPECT_EQ(told->num_pages, 16);
  EXPECT_EQ(told->max_model_len, 256);
  EXPECT_EQ(told->supported_model_len, 256);
  const CacheSpec spec = loaded->runner->cache_spec();
  EXPECT_EQ(told->cache_bytes, (spec.num_pages + 1) * spec.page_bytes);
  EXPECT_EQ(told->state_bytes, (spec.num_slots + 1) * spec.slot_bytes);
  EXPECT_EQ(told->bytes(),
            told->weight_bytes + told->cache_bytes + told->state_bytes);

  tiny_.tensors["lm_head.weight"].values[0] =
      std::numeric_limits<float>::quiet_NaN();
  tiny_.Write(options_.path);
  EXPECT_THAT(load().status(), FailsWith(kInvalid, "lm_head.weight", "is nan"));
  EXPECT_TRUE(told.has_value());
  tiny_.tensors["lm_head.weight"].values[0] = 3.4e38f;
  tiny_.Write(options_.path);
  options_.dtype = "bfloat16";
  EXPECT_THAT(load().status(), FailsWith(kInvalid, "--dtype is bfloat16"));
  EXPECT_TRUE(told.has_value());
  // What does not fit is an error, and no promise.
  options_.kv_pages = int64_t{1} << 30;
  EXPECT_FALSE(load().ok());
  EXPECT_FALSE(told.has_value());
}

// But for what pads them.
TEST_F(ModelLoaderTest, TellsTheBytesOfWeights) {
  for (const DType stored :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const char* dtype : {"auto", "float32", "bfloat16"}) {
      tiny_.SetDType(stored);
      tiny_.Write(options_.path);
      options_.dtype = dtype;
      const auto loaded = Load();
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      const auto held =
          static_cast<int64_t>(loaded->runner->info().weight_bytes);
      EXPECT_LE(loaded->capacity.weight_bytes, held) << dtype;
      EXPECT_GT(loaded->capacity.weight_bytes, held * 0.95) << dtype;
    }
  }
}

TEST_F(ModelLoaderTest, ATiedHeadThatIsStoredCountsOnce) {
  tiny_.config["tie_word_embeddings"] = true;
  tiny_.tensors.erase("lm_head.weight");
  tiny_.Write(options_.path);
  const auto without = Load();
  ASSERT_TRUE(without.ok()) << without.status();
  tiny_.tensors["lm_head.weight"] =
      tiny_.tensors.at("model.embed_tokens.weight");
  tiny_.Write(options_.path);
  const auto with = Load();
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_EQ(with->capacity.weight_bytes, without->capacity.weight_bytes);
  EXPECT_LE(with->capacity.weight_bytes,
            static_cast<int64_t>(with->runner->info().weight_bytes));
}

// What no host can hold is refused before anything of it is allocated.
TEST_F(ModelLoaderTest, RefusesWhatTheHostCannotHold) {
  options_.kv_pages = int64_t{1} << 30;  // of 10 KiB
  EXPECT_THAT(Status(),
              FailsWith(absl::StatusCode::kResourceExhausted,
                        "--kv-pages is 1073741824; the ",
                        "10995116288000 for 1073741824 pages of the KV cache"));
}

TEST_F(ModelLoaderTest, SwapBytesThatTheHostDoesNotHaveAreRefused) {
  options_.swap_bytes = int64_t{1} << 50;
  options_.swap_bytes_required = true;
  EXPECT_THAT(Status(), FailsWith(absl::StatusCode::kResourceExhausted,
                                  "--swap-bytes is 1125899906842624; the ",
                                  "of which the model takes "));
  options_.swap_bytes_required = false;
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->capacity.swap_bytes, 0);
  EXPECT_EQ(loaded->runner->cache_spec().num_host_blocks, 0);
}

// A host whose memory is used up, or of which no more can be page-locked.
class FullHost : public CpuExecutor {
 public:
  using CpuExecutor::CpuExecutor;
  absl::Status AllocateHost(int32_t /*num_blocks*/,
                            int64_t /*block_bytes*/) override {
    return status;
  }
  absl::Status status = absl::ResourceExhaustedError("the host is full");
};

TEST_F(ModelLoaderTest, SwapBytesThatAreADefaultMayBeMoreThanTheHostHas) {
  const auto checkpoint = Checkpoint::Open(options_.path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto model = ReadModel(*checkpoint, {});
  ASSERT_TRUE(model.ok()) << model.status();
  const auto load = [&](absl::Status status, bool required) {
    const Program program = Emit(*model);
    auto executor = std::make_unique<FullHost>(program, Lower(program, {}),
                                               /*max_tokens=*/8,
                                               std::make_unique<ThreadPool>(1));
    executor->status = std::move(status);
    return Decoder::Load(*model, std::move(executor), /*num_pages=*/4,
                         /*num_slots=*/2, /*swap_bytes=*/1 << 20, required);
  };
  const absl::Status full = absl::ResourceExhaustedError("the host is full");
  EXPECT_THAT(load(full, /*required=*/true).status(),
              FailsWith(absl::StatusCode::kResourceExhausted, "host is full"));
  const auto loaded = load(full, /*required=*/false);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->cache_spec().num_host_blocks, 0);
  // What is broken is no lack of memory.
  EXPECT_THAT(load(absl::InternalError("broken"), /*required=*/false).status(),
              FailsWith(absl::StatusCode::kInternal, "broken"));
  const auto plenty = load(absl::OkStatus(), /*required=*/false);
  ASSERT_TRUE(plenty.ok()) << plenty.status();
  EXPECT_GT((*plenty)->cache_spec().num_host_blocks, 0);
}

TEST_F(ModelLoaderTest, MaxModelLenStaysWithinTheCache) {
  options_.kv_pages = 3;
  engine_.max_model_len = 192;
  EXPECT_TRUE(Status().ok());
  engine_.max_model_len = 193;
  EXPECT_THAT(Status(), FailsWith(kInvalid, "--max-model-len is 193", "3 pages",
                                  "192 tokens"));
  // Not asked for: as much as fits, and said so.
  engine_.max_model_len = 0;
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(engine_.max_model_len, 192);
  EXPECT_TRUE(loaded->capacity.max_model_len_reduced);
}

TEST_F(ModelLoaderTest, ThePoolLimitsThePages) {
  const int64_t page_bytes = 64 * 160;
  options_.kv_pool_bytes = 5 * page_bytes + 1;
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->capacity.num_pages, 5);
  options_.kv_pool_bytes = page_bytes - 1;
  engine_.max_model_len = 0;
  EXPECT_THAT(Status(),
              FailsWith(kInvalid, "--kv-pool-bytes is 10239", "10240 bytes"));
  options_.kv_pool_bytes = -1;
  EXPECT_THAT(Status(), FailsWith(kInvalid, "--kv-pool-bytes is -1", "0 or"));
}

// On the CPU 1 GiB, of which the model takes what its sequences can use.
TEST_F(ModelLoaderTest, APoolByDefault) {
  options_.kv_pool_bytes = 0;
  engine_.max_model_len = 0;
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_FALSE(loaded->capacity.max_model_len_reduced);
  EXPECT_EQ(loaded->capacity.num_pages,
            (loaded->capacity.max_model_len + 63) / 64 * engine_.max_num_seqs);
}

TEST(DefaultGpuPoolBytesTest, TakesWhatIsLeft) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(DefaultGpuPoolBytes(80 * kGiB, 10 * kGiB), 64 * kGiB);
  EXPECT_EQ(DefaultGpuPoolBytes(16 * kGiB, 3 * kGiB), 11 * kGiB);
  // Never less than on the CPU; whether that fits is found out later.
  EXPECT_EQ(DefaultGpuPoolBytes(16 * kGiB, 13 * kGiB), kGiB);
  EXPECT_EQ(DefaultGpuPoolBytes(8 * kGiB, 20 * kGiB), kGiB);
}

TEST_F(ModelLoaderTest, AModelWithoutTpaNeedsNoPages) {
  tiny_.config["layers"].erase(0);
  tiny_.config["num_hidden_layers"] = 1;
  tiny_.FillTensors();
  tiny_.Write(options_.path);
  options_.kv_pool_bytes = 0;
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->capacity.num_pages, 0);
  EXPECT_EQ(loaded->capacity.max_model_len, 256);
}

TEST_F(ModelLoaderTest, ChecksEngineOptionsBeforeItLoads) {
  engine_.max_num_batched_tokens = 3;
  EXPECT_THAT(Status(), FailsWith(kInvalid, "--max-num-batched-tokens 3;"));
}

TEST_F(ModelLoaderTest, TokensInAStepIfNobodySays) {
  engine_.max_num_batched_tokens = engine_.max_chunk_tokens = 0;
  ASSERT_TRUE(Load().ok());
  EXPECT_EQ(engine_.max_num_batched_tokens, 512);
  EXPECT_EQ(engine_.max_chunk_tokens, 512);
  engine_.max_num_seqs = 600;
  engine_.max_num_batched_tokens = 0;
  engine_.max_chunk_tokens = 665;
  EXPECT_THAT(Status(), FailsWith(kInvalid, "--max-chunk-tokens is 665",
                                  "expected 0 to 664"));
  EXPECT_EQ(engine_.max_num_batched_tokens, 664);
  EXPECT_EQ(DefaultBatchedTokens(/*gpu=*/true, 256), 2048);
  EXPECT_EQ(DefaultBatchedTokens(/*gpu=*/true, 4096), 4160);
}

TEST_F(ModelLoaderTest, NamesAFolderThatIsNotThere) {
  options_.path += "/nowhere";
  EXPECT_THAT(Status(),
              FailsWith(absl::StatusCode::kNotFound, "/model/nowhere"));
}

}  // namespace
}  // namespace recurve
