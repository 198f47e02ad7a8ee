#ifndef RECURVE_TESTS_ENGINE_TINY_CHECKPOINT_H_
#define RECURVE_TESTS_ENGINE_TINY_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace recurve {

// A checkpoint of the native family, small enough to write for one test. Change
// the config, fill its tensors, corrupt some, write it.
//
// Weights are multiples of 1/64 below 1/2, which all float types represent
// exactly: the same checkpoint in another type is the same model.
struct TinyCheckpoint {
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> values;
    DType dtype = DType::kFloat32;
  };

  nlohmann::json config;
  std::map<std::string, Tensor> tensors;

  // Two layers, TPA and linear attention, with every option in use; a
  // vocabulary of 260 with the bytes tokenizer; 256 positions.
  static TinyCheckpoint Hybrid();

  // Replaces all tensors by random ones, with the names and shapes that the
  // format prescribes for `config`. The same name gets the same numbers.
  void FillTensors();
  void SetDType(DType dtype);

  // Writes config.json and model.safetensors, or, with more than one shard, an
  // index and the shards.
  void Write(const std::string& folder, int shards = 1) const;

 private:
  void FillLayer(int64_t index);
  void Fill(const std::string& name, std::vector<int64_t> shape);
};

}  // namespace recurve

#endif  // RECURVE_TESTS_ENGINE_TINY_CHECKPOINT_H_
