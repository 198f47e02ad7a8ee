#include "engine/checkpoint/checkpoint.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "engine/checkpoint/quote.h"

namespace recurve {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

absl::Status CheckDirectory(const std::string& dir) {
  RECURVE_ASSIGN_OR_RETURN(const bool exists, FileExists(dir));
  if (!exists) {
    return absl::NotFoundError(absl::StrCat(dir, " does not exist"));
  }
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error)) {
    return absl::InvalidArgumentError(absl::StrCat(
        dir, " is not a directory; expected one with config.json and ",
        kSingleFile));
  }
  return absl::OkStatus();
}

// "'a', 'b', …"
std::string Listed(const std::set<std::string>& names) {
  constexpr size_t kNamed = 5;
  std::string text;
  size_t count = 0;
  for (const std::string& name : names) {
    if (++count > kNamed) return absl::StrCat(text, ", …");
    absl::StrAppend(&text, count == 1 ? "" : ", ", Quote(name));
  }
  return text;
}

// "; found 'pytorch_model.bin', which …", or nothing.
std::string HintAtOtherFiles(const std::string& dir) {
  std::set<std::string> torch;
  std::set<std::string> safetensors;
  std::error_code error;
  std::filesystem::directory_iterator entry(dir, error);
  for (; !error && entry != std::filesystem::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (absl::EndsWith(name, ".safetensors")) safetensors.insert(name);
    for (const char* suffix : {".bin", ".pt", ".pth"}) {
      if (absl::EndsWith(name, suffix)) torch.insert(name);
    }
  }
  if (!safetensors.empty()) {
    return absl::StrCat("; found ", Listed(safetensors),
                        ": the index is missing, or one file with all weights "
                        "has another name than ",
                        kSingleFile);
  }
  if (torch.empty()) return "";
  return absl::StrCat("; found ", Listed(torch),
                      ": PyTorch files must be converted to safetensors first");
}

// A shard must be a plain file name in the model directory: an index must not
// refer to files outside it.
bool IsPlainFileName(const std::string& name) {
  return name.find_first_of(std::string("/\\\0", 3)) == std::string::npos &&
         name.find("..") == std::string::npos &&
         absl::EndsWith(name, ".safetensors");
}

bool IsFloat(DType dtype) { return dtype != DType::kInt32; }

// "[258, 256]"
std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& dir) {
  RECURVE_RETURN_IF_ERROR(CheckDirectory(dir));
  const std::string config_path = absl::StrCat(dir, "/config.json");
  RECURVE_ASSIGN_OR_RETURN(JsonObject config,
                           LoadJsonFile(config_path, kMaxConfigBytes));
  Checkpoint checkpoint(dir, std::move(config));

  const std::string generation = absl::StrCat(dir, "/generation_config.json");
  RECURVE_ASSIGN_OR_RETURN(const bool has_generation, FileExists(generation));
  if (has_generation) {
    RECURVE_ASSIGN_OR_RETURN(checkpoint.generation_config_,
                             LoadJsonFile(generation, kMaxConfigBytes));
  }
  RECURVE_RETURN_IF_ERROR(checkpoint.OpenWeights());
  return checkpoint;
}

absl::Status Checkpoint::OpenWeights() {
  const std::string single = absl::StrCat(dir_, "/", kSingleFile);
  const std::string index = absl::StrCat(dir_, "/", kIndexFile);
  RECURVE_ASSIGN_OR_RETURN(const bool has_single, FileExists(single));
  RECURVE_ASSIGN_OR_RETURN(const bool has_index, FileExists(index));
  if (has_single && has_index) {
    // Some writers add an index of the single file; any other index would leave
    // ambiguous which of the two is the model.
    RECURVE_ASSIGN_OR_RETURN(const JsonObject json,
                             LoadJsonFile(index, kMaxConfigBytes));
    RECURVE_ASSIGN_OR_RETURN(const auto weight_map,
                             json.StringMap("weight_map"));
    for (const auto& [tensor, file] : weight_map) {
      if (file == kSingleFile) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(dir_, " holds both ", kSingleFile, " and ", kIndexFile,
                       ", which is of other files; expected one of them"));
    }
  }
  if (has_index) {
    listing_ = index;
    return OpenShards(index);
  }
  if (has_single) {
    listing_ = single;
    return AddFile(single);
  }
  return absl::NotFoundError(
      absl::StrCat(dir_, " holds no weights; looked for ", kSingleFile, " and ",
                   kIndexFile, HintAtOtherFiles(dir_)));
}

absl::Status Checkpoint::OpenShards(const std::string& index_path) {
  RECURVE_ASSIGN_OR_RETURN(const JsonObject index,
                           LoadJsonFile(index_path, kMaxConfigBytes));
  RECURVE_ASSIGN_OR_RETURN(const auto weight_map,
                           index.StringMap("weight_map"));
  if (weight_map.empty()) {
    return index.Invalid("weight_map", "is empty; expected tensor names");
  }
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : weight_map) {
    if (!IsPlainFileName(shard)) {
      return index.Invalid(
          absl::StrCat("weight_map.", Quote(tensor)),
          absl::StrCat("is ", Quote(shard),
                       "; expected the name of a .safetensors file in the same "
                       "directory"));
    }
    shards.insert(shard);
  }
  for (const std::string& shard : shards) {
    const std::string path = absl::StrCat(dir_, "/", shard);
    // Reports a dangling link.
    RECURVE_RETURN_IF_ERROR(FileExists(path).status());
    RECURVE_RETURN_IF_ERROR(AddFile(path));
    for (const auto& [tensor, file] : file_of_) {
      if (file + 1 != files_.size()) continue;
      const auto it = weight_map.find(tensor);
      if (it == weight_map.end() || it->second != shard) {
        return absl::InvalidArgumentError(absl::StrCat(
            files_.back().path(), ": tensor ", Quote(tensor), " is listed ",
            it == weight_map.end() ? "nowhere"
                                   : absl::StrCat("under ", Quote(it->second)),
            " in ", index_path));
      }
    }
  }
  for (const auto& [tensor, shard] : weight_map) {
    if (!Has(tensor)) {
      return absl::InvalidArgumentError(
          absl::StrCat(dir_, "/", shard, ": tensor ", Quote(tensor),
                       " is missing; ", index_path, " lists it"));
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::AddFile(const std::string& path) {
  RECURVE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  for (const auto& item : file.tensors()) file_of_[item.first] = files_.size();
  for (const auto& item : file.others()) file_of_[item.first] = files_.size();
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  names.reserve(file_of_.size());
  for (const auto& item : file_of_) names.push_back(item.first);
  return names;
}

const TensorView* Checkpoint::Find(const std::string& name) const {
  const auto it = file_of_.find(name);
  if (it == file_of_.end()) return nullptr;
  const auto& tensors = files_[it->second].tensors();
  const auto tensor = tensors.find(name);
  return tensor == tensors.end() ? nullptr : &tensor->second;
}

const SafetensorsFile::Other* Checkpoint::FindOther(
    const std::string& name) const {
  const auto it = file_of_.find(name);
  if (it == file_of_.end()) return nullptr;
  const auto& others = files_[it->second].others();
  const auto other = others.find(name);
  return other == others.end() ? nullptr : &other->second;
}

absl::Status Checkpoint::NotRead(const std::string& name,
                                 const std::string& expected) const {
  const SafetensorsFile::Other* const other = FindOther(name);
  if (other != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(FileOf(name), ": tensor ", Quote(name), ": dtype is ",
                     Quote(other->type), "; supported: F32, F16, BF16"));
  }
  return absl::NotFoundError(absl::StrCat(listing_, ": tensor ", Quote(name),
                                          " is missing", expected));
}

bool Checkpoint::Has(const std::string& name) const {
  return file_of_.count(name) > 0;
}

std::string Checkpoint::FileOf(const std::string& name) const {
  const auto it = file_of_.find(name);
  return it == file_of_.end() ? listing_ : files_[it->second].path();
}

absl::StatusOr<TensorView> Checkpoint::Tensor(const std::string& name) const {
  const TensorView* view = Find(name);
  if (view == nullptr) return NotRead(name, "");
  return *view;
}

absl::StatusOr<TensorView> Checkpoint::Tensor(
    const std::string& name, const std::vector<int64_t>& expected_shape) const {
  const TensorView* view = Find(name);
  if (view == nullptr) {
    return NotRead(
        name, absl::StrCat("; expected shape ", ShapeText(expected_shape)));
  }
  if (view->shape != expected_shape || !IsFloat(view->dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        FileOf(name), ": tensor ", Quote(name), " is ", Name(view->dtype), " ",
        ShapeText(view->shape), "; expected float32, float16 or bfloat16 ",
        ShapeText(expected_shape)));
  }
  return *view;
}

absl::Status Checkpoint::CheckAllUsed(const std::set<std::string>& used) const {
  constexpr int kNamed = 5;
  int extra = 0;
  std::string named;
  for (const auto& item : file_of_) {
    if (used.count(item.first) > 0) continue;
    if (++extra <= kNamed) {
      absl::StrAppend(&named, extra == 1 ? "" : ", ", Quote(item.first));
    }
  }
  if (extra == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      listing_, ": ", extra, extra == 1 ? " tensor" : " tensors",
      " that this model does not use: ", named, extra > kNamed ? ", …" : ""));
}

}  // namespace recurve
