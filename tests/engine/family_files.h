#ifndef RECURVE_TESTS_ENGINE_FAMILY_FILES_H_
#define RECURVE_TESTS_ENGINE_FAMILY_FILES_H_

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/models/registry.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"

namespace recurve {

struct StoredTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// A golden checkpoint whose files a test changes.
class FamilyFiles : public testing::Test {
 protected:
  void Use(const std::string& set) {
    const std::string source = RECURVE_SOURCE_DIR "/tests/golden/models/" + set;
    std::ifstream config_file(source + "/config.json");
    config = nlohmann::json::parse(config_file);
    const auto file = SafetensorsFile::Open(source + "/model.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    tensors.clear();
    for (const auto& [name, view] : file->tensors()) {
      ASSERT_EQ(view.dtype, DType::kFloat32);
      tensors[name] = {"F32", view.shape,
                       std::string(static_cast<const char*>(view.data),
                                   view.num_elements() * sizeof(float))};
    }
  }

  absl::Status Read(const FamilyOptions& options = {}) {
    nlohmann::json header = nlohmann::json::object();
    std::string payload;
    for (const auto& [name, tensor] : tensors) {
      header[name] = {{"dtype", tensor.dtype},
                      {"shape", tensor.shape},
                      {"data_offsets",
                       {payload.size(), payload.size() + tensor.bytes.size()}}};
      payload += tensor.bytes;
    }
    folder_.Write("config.json", config.dump());
    folder_.Write("model.safetensors",
                  SafetensorsBytes(header.dump(), payload));
    const auto checkpoint = Checkpoint::Open(folder_.path());
    if (!checkpoint.ok()) return checkpoint.status();
    const auto model = ReadModel(*checkpoint, options);
    if (model.ok()) {
      family_ = model->family;
      variant_ = model->variant;
      remarks_ = model->remarks;
      ignored_keys_ = model->ignored_keys;
      default_model_len_ = model->default_model_len;
      layers_.clear();
      for (const LayerDefinition& layer : model->layers) {
        layers_.emplace_back(layer.mixer->name());
      }
    }
    return model.status();
  }

  // Reads with one key of the config changed.
  absl::Status ReadWith(const std::string& key, const nlohmann::json& value) {
    const nlohmann::json before = config;
    config[key] = value;
    const absl::Status status = Read();
    config = before;
    return status;
  }

  nlohmann::json config;
  std::map<std::string, StoredTensor> tensors;
  std::string family_;
  std::string variant_;
  std::vector<std::string> remarks_;
  std::vector<std::string> ignored_keys_;
  int64_t default_model_len_ = 0;
  std::vector<std::string> layers_;  // names of the mixers
  TempFolder folder_;
};

}  // namespace recurve

#endif  // RECURVE_TESTS_ENGINE_FAMILY_FILES_H_
