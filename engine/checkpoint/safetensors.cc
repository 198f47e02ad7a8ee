#include "engine/checkpoint/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/checkpoint/json_parse.h"
#include "engine/checkpoint/quote.h"
#include "nlohmann/json.hpp"

namespace recurve {
namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr int kMaxHeaderDepth = 4;                 // 3 are used
constexpr size_t kMaxRank = 8;
constexpr absl::string_view kMetadataKey = "__metadata__";

// Bytes [begin, end) of the payload.
struct Extent {
  int64_t begin;
  int64_t end;
  std::string tensor;
};

absl::Status TensorError(const std::string& path, const std::string& name,
                         absl::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": tensor ", Quote(name), ": ", problem));
}

bool ReadNonNegative(const json& value, int64_t* out) {
  if (!value.is_number_unsigned()) return false;
  const uint64_t number = value.get<uint64_t>();
  if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return false;
  }
  *out = static_cast<int64_t>(number);
  return true;
}

// An element type of the format. Types of less than a byte are not known here.
struct ElementType {
  const char* name;
  int64_t bytes;
  std::optional<DType> dtype;  // if tensors of this type can be read
};
const ElementType kElementTypes[] = {
    {"F32", 4, DType::kFloat32},      {"F16", 2, DType::kFloat16},
    {"BF16", 2, DType::kBFloat16},    {"I32", 4, DType::kInt32},
    {"F64", 8, std::nullopt},         {"F8_E4M3", 1, std::nullopt},
    {"F8_E5M2", 1, std::nullopt},     {"F8_E8M0", 1, std::nullopt},
    {"F8_E4M3FNUZ", 1, std::nullopt}, {"F8_E5M2FNUZ", 1, std::nullopt},
    {"I64", 8, std::nullopt},         {"I16", 2, std::nullopt},
    {"I8", 1, std::nullopt},          {"U64", 8, std::nullopt},
    {"U32", 4, std::nullopt},         {"U16", 2, std::nullopt},
    {"U8", 1, std::nullopt},          {"BOOL", 1, std::nullopt},
    {"C64", 8, std::nullopt}};

// Null for an unknown one.
const ElementType* ReadElementType(const json& value) {
  const auto* const found =
      std::find_if(std::begin(kElementTypes), std::end(kElementTypes),
                   [&](const ElementType& t) { return value == t.name; });
  return found == std::end(kElementTypes) ? nullptr : found;
}

// Exactly "dtype", "shape" and "data_offsets".
absl::Status CheckKeys(const std::string& path, const std::string& name,
                       const json& entry) {
  static constexpr const char* kKeys[] = {"dtype", "shape", "data_offsets"};
  for (const char* key : kKeys) {
    if (!entry.contains(key)) {
      return TensorError(path, name, absl::StrCat(key, " is missing"));
    }
  }
  for (const auto& item : entry.items()) {
    if (std::find(std::begin(kKeys), std::end(kKeys), item.key()) ==
        std::end(kKeys)) {
      return TensorError(
          path, name,
          absl::StrCat("unknown key ", Quote(item.key()),
                       "; expected dtype, shape and data_offsets"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadShape(const std::string& path, const std::string& name,
                       const json& value, int64_t element_bytes,
                       TensorView* view) {
  if (!value.is_array() || value.size() > kMaxRank) {
    return TensorError(
        path, name,
        absl::StrCat("shape is ", DescribeJson(value),
                     "; expected a list of at most ", kMaxRank, " dimensions"));
  }
  int64_t bytes = element_bytes;
  for (const json& element : value) {
    int64_t dim = 0;
    if (!ReadNonNegative(element, &dim)) {
      return TensorError(path, name,
                         absl::StrCat("shape[", view->shape.size(), "] is ",
                                      DescribeJson(element),
                                      "; expected an integer of at least 0"));
    }
    // Zeros are skipped, so that no product of dimensions can overflow later,
    // in any order of multiplication.
    if (dim != 0 && __builtin_mul_overflow(bytes, dim, &bytes)) {
      return TensorError(path, name,
                         absl::StrCat("shape ", Quote(value.dump()),
                                      " has a size in bytes beyond 64 bits"));
    }
    view->shape.push_back(dim);
  }
  return absl::OkStatus();
}

absl::Status ReadOffsets(const std::string& path, const std::string& name,
                         const json& value, int64_t payload_bytes,
                         Extent* extent) {
  if (!value.is_array() || value.size() != 2 ||
      !ReadNonNegative(value[0], &extent->begin) ||
      !ReadNonNegative(value[1], &extent->end)) {
    const bool short_enough = value.is_array() && value.size() <= 2;
    return TensorError(
        path, name,
        absl::StrCat("data_offsets is ",
                     short_enough ? Quote(value.dump()) : DescribeJson(value),
                     "; expected a list of two integers of at least 0"));
  }
  if (extent->begin > extent->end || extent->end > payload_bytes) {
    return TensorError(
        path, name,
        absl::StrCat("data_offsets is [", extent->begin, ",", extent->end,
                     "]; expected begin <= end <= ", payload_bytes,
                     ", the bytes after the header"));
  }
  return absl::OkStatus();
}

absl::Status ReadTensor(const std::string& path, const std::string& name,
                        const json& entry, absl::string_view payload,
                        const ElementType** type, TensorView* view,
                        Extent* extent) {
  if (!entry.is_object()) {
    return TensorError(
        path, name,
        absl::StrCat("is ", DescribeJson(entry), "; expected an object"));
  }
  RECURVE_RETURN_IF_ERROR(CheckKeys(path, name, entry));
  *type = ReadElementType(entry["dtype"]);
  if (*type == nullptr) {
    return TensorError(path, name,
                       absl::StrCat("dtype is ", DescribeJson(entry["dtype"]),
                                    "; supported: F32, F16, BF16"));
  }
  RECURVE_RETURN_IF_ERROR(
      ReadShape(path, name, entry["shape"], (*type)->bytes, view));
  RECURVE_RETURN_IF_ERROR(ReadOffsets(path, name, entry["data_offsets"],
                                      static_cast<int64_t>(payload.size()),
                                      extent));
  const int64_t expected = view->num_elements() * (*type)->bytes;
  if (extent->end - extent->begin != expected) {
    return TensorError(
        path, name,
        absl::StrCat(
            "data_offsets span ", extent->end - extent->begin, " bytes; shape ",
            entry["shape"].dump(), " of ",
            (*type)->dtype.has_value() ? Name(*(*type)->dtype) : (*type)->name,
            " needs ", expected));
  }
  if ((*type)->dtype.has_value()) view->dtype = *(*type)->dtype;
  view->data = payload.data() + extent->begin;
  extent->tensor = name;
  return absl::OkStatus();
}

absl::Status CheckMetadata(const std::string& path, const json& value) {
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": __metadata__ is ", DescribeJson(value),
                     "; expected an object of strings"));
  }
  for (const auto& item : value.items()) {
    if (!item.value().is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": __metadata__ ", Quote(item.key()), " is ",
                       DescribeJson(item.value()), "; expected a string"));
    }
  }
  return absl::OkStatus();
}

// The extents, in order, must cover the payload byte for byte.
absl::Status CheckTiling(const std::string& path, std::vector<Extent> extents,
                         int64_t payload_bytes) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) {
              return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
            });
  int64_t covered = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != covered) {
      return TensorError(
          path, extent.tensor,
          absl::StrCat("begins at payload byte ", extent.begin,
                       extent.begin < covered ? " and overlaps another tensor"
                                              : " and leaves a hole",
                       "; expected ", covered));
    }
    covered = extent.end;
  }
  if (covered != payload_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", payload_bytes - covered,
                     " bytes after the last tensor; expected none"));
  }
  return absl::OkStatus();
}

// Splits the file into header text and payload.
absl::Status Split(const MappedFile& file, absl::string_view* header,
                   absl::string_view* payload) {
  const absl::string_view bytes = file.bytes();
  if (bytes.size() < kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path(), ": ", bytes.size(),
        " bytes; expected at least 8, the length of a safetensors header"));
  }
  RECURVE_RETURN_IF_ERROR(CheckNotLfsPointer(file.path(), bytes));
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  const uint64_t limit =
      std::min<uint64_t>(kMaxHeaderBytes, bytes.size() - kLengthBytes);
  if (length > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": header length is ", length,
                     "; expected at most ", limit,
                     limit == kMaxHeaderBytes ? ", the format's limit"
                                              : ", the bytes that follow it"));
  }
  *header = bytes.substr(kLengthBytes, static_cast<size_t>(length));
  *payload = bytes.substr(kLengthBytes + static_cast<size_t>(length));
  if (header->empty() || header->front() != '{') {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": header begins with ",
                     Quote(header->substr(0, 1)), "; expected '{'"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  RECURVE_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  SafetensorsFile file(std::move(mapped));
  absl::string_view header_text;
  absl::string_view payload;
  RECURVE_RETURN_IF_ERROR(Split(file.file_, &header_text, &payload));
  // Parsing starts at a '{', so the header is an object.
  RECURVE_ASSIGN_OR_RETURN(
      const json header,
      ParseJson(header_text, absl::StrCat(path, ": header"), kMaxHeaderDepth));
  std::vector<Extent> extents;
  for (const auto& item : header.items()) {
    if (item.key() == kMetadataKey) {
      RECURVE_RETURN_IF_ERROR(CheckMetadata(path, item.value()));
      continue;
    }
    const ElementType* type = nullptr;
    TensorView view;
    Extent extent;
    RECURVE_RETURN_IF_ERROR(ReadTensor(path, item.key(), item.value(), payload,
                                       &type, &view, &extent));
    if (type->dtype.has_value()) {
      file.tensors_.emplace(item.key(), std::move(view));
    } else {
      file.others_.emplace(item.key(),
                           Other{type->name, extent.end - extent.begin});
    }
    extents.push_back(std::move(extent));
  }
  RECURVE_RETURN_IF_ERROR(CheckTiling(path, std::move(extents),
                                      static_cast<int64_t>(payload.size())));
  return file;
}

}  // namespace recurve
