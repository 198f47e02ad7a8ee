#include "tools/recurve_model/safetensors_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"

namespace recurve {
namespace {

constexpr int64_t kBlockElements = 1 << 18;

const char* StoredName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "F32";
    case DType::kFloat16:
      return "F16";
    case DType::kBFloat16:
      return "BF16";
    case DType::kInt32:
      return "I32";
  }
  return "";
}

// An output file. Close() says whether everything was written.
class OutputFile {
 public:
  static absl::StatusOr<OutputFile> Create(const std::string& path) {
    std::FILE* const file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", path));
    }
    return OutputFile(path, file);
  }
  ~OutputFile() {
    if (file_ != nullptr) std::fclose(file_);
  }
  OutputFile(OutputFile&& other) noexcept
      : path_(std::move(other.path_)),
        file_(std::exchange(other.file_, nullptr)) {}
  OutputFile& operator=(OutputFile&&) = delete;

  absl::Status Write(absl::string_view bytes) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size())
      return absl::OkStatus();
    return Failed();
  }
  absl::Status Close() {
    return std::fclose(std::exchange(file_, nullptr)) == 0 ? absl::OkStatus()
                                                           : Failed();
  }

 private:
  OutputFile(std::string path, std::FILE* file)
      : path_(std::move(path)), file_(file) {}
  absl::Status Failed() const {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
  }

  std::string path_;
  std::FILE* file_;
};

int64_t Count(const TensorSpec& tensor) {
  return tensor.bytes() / SizeOf(tensor.dtype);
}

// Computes a round of blocks on all threads, then writes them in order.
class ShardWriter {
 public:
  ShardWriter(const TensorSource& source, int num_threads,
              const WriteProgress& progress)
      : source_(source), progress_(progress), pool_(num_threads) {}

  absl::Status Write(const std::string& path,
                     const std::vector<TensorSpec>& tensors,
                     const Shard& shard) {
    RECURVE_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
    RECURVE_RETURN_IF_ERROR(file.Write(SafetensorsHeader(tensors, shard)));
    for (const size_t index : shard.tensors)
      RECURVE_RETURN_IF_ERROR(WriteTensor(tensors[index], index, &file));
    return file.Close();
  }

 private:
  absl::Status WriteTensor(const TensorSpec& tensor, size_t index,
                           OutputFile* file) {
    const int64_t count = Count(tensor);
    const int64_t round = kBlockElements * pool_.num_threads();
    for (int64_t begin = 0; begin < count; begin += round) {
      const int64_t end = std::min(count, begin + round);
      const int64_t size = SizeOf(tensor.dtype);
      buffer_.resize(static_cast<size_t>((end - begin) * size));
      pool_.ParallelFor((end - begin + kBlockElements - 1) / kBlockElements,
                        [&](int64_t block) {
                          const int64_t offset = block * kBlockElements;
                          source_(
                              index, begin + offset,
                              std::min(kBlockElements, end - begin - offset),
                              buffer_.data() + offset * size);
                        });
      RECURVE_RETURN_IF_ERROR(
          file->Write(absl::string_view(buffer_.data(), buffer_.size())));
      written_ += static_cast<int64_t>(buffer_.size());
      if (progress_) progress_(written_);
    }
    return absl::OkStatus();
  }

  const TensorSource& source_;
  const WriteProgress& progress_;
  ThreadPool pool_;
  std::vector<char> buffer_;
  int64_t written_ = 0;
};

}  // namespace

int64_t TensorSpec::bytes() const {
  int64_t bytes = SizeOf(dtype);
  for (const int64_t dim : shape) bytes *= dim;
  return bytes;
}

std::vector<Shard> PlanShards(const std::vector<TensorSpec>& tensors,
                              int64_t shard_bytes) {
  RECURVE_CHECK(shard_bytes > 0);
  std::vector<Shard> shards(1);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = tensors[i].bytes();
    if (!shards.back().tensors.empty() &&
        bytes > shard_bytes - shards.back().payload_bytes) {
      shards.emplace_back();
    }
    shards.back().tensors.push_back(i);
    shards.back().payload_bytes += bytes;
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1
                         ? "model.safetensors"
                         : absl::StrFormat("model-%05d-of-%05d.safetensors",
                                           i + 1, shards.size());
  }
  return shards;
}

std::string SafetensorsHeader(const std::vector<TensorSpec>& tensors,
                              const Shard& shard) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  int64_t offset = 0;
  for (const size_t index : shard.tensors) {
    const TensorSpec& tensor = tensors[index];
    const int64_t end = offset + tensor.bytes();
    header[tensor.name] = {{"dtype", StoredName(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string length;
  for (int i = 0; i < 8; ++i)
    length.push_back(static_cast<char>(uint64_t{text.size()} >> (8 * i)));
  return length + text;
}

std::string SafetensorsIndex(const std::vector<TensorSpec>& tensors,
                             const std::vector<Shard>& shards) {
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  int64_t total = 0;
  for (const Shard& shard : shards) {
    total += shard.payload_bytes;
    for (const size_t index : shard.tensors)
      weight_map[tensors[index].name] = shard.file;
  }
  return nlohmann::ordered_json({{"metadata", {{"total_size", total}}},
                                 {"weight_map", weight_map}})
             .dump(1) +
         "\n";
}

absl::Status WriteSafetensors(const std::string& dir,
                              const std::vector<TensorSpec>& tensors,
                              const std::vector<Shard>& shards,
                              const TensorSource& source, int num_threads,
                              const WriteProgress& progress) {
  ShardWriter writer(source, num_threads, progress);
  std::vector<std::string> paths;
  absl::Status status;
  for (const Shard& shard : shards) {
    if (!status.ok()) break;
    paths.push_back(absl::StrCat(dir, "/", shard.file));
    status = writer.Write(paths.back(), tensors, shard);
  }
  if (status.ok() && shards.size() > 1) {
    paths.push_back(absl::StrCat(dir, "/model.safetensors.index.json"));
    status = WriteWholeFile(paths.back(), SafetensorsIndex(tensors, shards));
  }
  if (!status.ok()) {
    std::error_code ignored;
    for (const std::string& path : paths)
      std::filesystem::remove(path, ignored);
  }
  return status;
}

absl::Status WriteWholeFile(const std::string& path,
                            const std::string& content) {
  RECURVE_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  RECURVE_RETURN_IF_ERROR(file.Write(content));
  return file.Close();
}

}  // namespace recurve
