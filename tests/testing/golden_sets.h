#ifndef RECURVE_TESTS_TESTING_GOLDEN_SETS_H_
#define RECURVE_TESTS_TESTING_GOLDEN_SETS_H_

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace recurve {

// The folder of the golden checkpoints: tests/golden/models, or the value of
// RECURVE_GOLDEN_MODELS.
inline std::string GoldenFolder() {
  const char* folder = std::getenv("RECURVE_GOLDEN_MODELS");
  return folder != nullptr ? folder : RECURVE_SOURCE_DIR "/tests/golden/models";
}

// The sets there, sorted.
inline std::vector<std::string> GoldenSets() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(GoldenFolder()))
    if (entry.is_directory()) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// A model whose bits are tested, with its weights in one type.
struct GoldenCase {
  std::string model;  // a golden set, or "demo"
  std::string type;

  std::string path() const {
    return model == "demo" ? RECURVE_SOURCE_DIR "/deploy/models/demo"
                           : GoldenFolder() + "/" + model;
  }
};

// Every set and the demo model, in float32 and in bfloat16.
inline std::vector<GoldenCase> GoldenCases() {
  std::vector<GoldenCase> cases;
  std::vector<std::string> models = GoldenSets();
  models.emplace_back("demo");
  for (const std::string& model : models) {
    for (const char* type : {"float32", "bfloat16"}) {
      cases.push_back({model, type});
    }
  }
  return cases;
}

// A set's name in a form valid for GoogleTest.
inline std::string GoldenTestName(std::string set) {
  std::replace(set.begin(), set.end(), '-', '_');
  return set;
}

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_GOLDEN_SETS_H_
