#include "server/openai/field_reader.h"

#include <cmath>
#include <utility>

#include "absl/status/statusor.h"

namespace recurve {
namespace {

using nlohmann::json;

// Deep enough for every field.
constexpr int kMaxDepth = 8;
// Limit without token ids. With every field at its limit there are some 1,300.
constexpr int kMaxValues = 4096;

ApiError Problem(std::string message) {
  ApiError error;
  error.message = std::move(message);
  return error;
}

std::optional<ApiError> TakeObject(absl::StatusOr<json> parsed, json* object) {
  if (!parsed.ok()) return Problem(std::string(parsed.status().message()));
  if (!parsed->is_object()) {
    return Problem(absl::StrCat("the body is ", DescribeJson(*parsed),
                                "; expected an object"));
  }
  *object = *std::move(parsed);
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> ParseBody(absl::string_view body,
                                  absl::string_view ids_member, int64_t max_ids,
                                  absl::string_view limit, json* object) {
  int values = 0;
  int64_t ids = 0;  // of one list
  bool has_object = false;
  // Millions of values would block the thread for a second, which would delay
  // the streams of others.
  const auto filter = [&](const std::string& member, const json& value) {
    const bool in_ids = member == ids_member;
    if (in_ids && value.is_number_unsigned()) return ++ids <= max_ids;
    if (value.is_array()) ids = 0;
    if (in_ids && value.is_object()) {
      has_object = true;
      return false;
    }
    return ++values <= kMaxValues;
  };
  auto parsed = ParseJson(body, "the body", kMaxDepth, filter);
  if (has_object) {
    ApiError error = Problem(absl::StrCat(
        ids_member,
        " is, or has, an object; expected a string or a list of token ids"));
    error.param = std::string(ids_member);
    return error;
  }
  if (ids > max_ids) {
    ApiError error = Problem(absl::StrCat(ids_member, " has more than ",
                                          max_ids, " token ids, ", limit));
    error.param = std::string(ids_member);
    error.code = "context_length_exceeded";
    return error;
  }
  if (values > kMaxValues) {
    return Problem(absl::StrCat("the body has more than ", kMaxValues,
                                " values in addition to the token ids of ",
                                ids_member));
  }
  return TakeObject(std::move(parsed), object);
}

std::optional<ApiError> ParseBody(absl::string_view body, int max_depth,
                                  int max_values, json* object) {
  int values = 0;
  auto parsed = ParseJson(
      body, "the body", max_depth,
      [&](const std::string&, const json&) { return ++values <= max_values; });
  if (values > max_values) {
    return Problem(
        absl::StrCat("the body has more than ", max_values, " values"));
  }
  return TakeObject(std::move(parsed), object);
}

std::optional<int64_t> WholeNumber(const json& value) {
  if (value.is_number_float()) {
    constexpr double kExact = int64_t{1} << 53;
    const double number = value.get<double>();
    if (std::abs(number) > kExact || std::trunc(number) != number) {
      return std::nullopt;
    }
    return static_cast<int64_t>(number);
  }
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)) {
    return std::nullopt;
  }
  return value.get<int64_t>();
}

std::optional<ApiError> CheckModel(FieldReader& reader, const json& value,
                                   const std::string& model_name) {
  const std::string name = reader.String("model", value);
  if (reader.failed()) return reader.TakeError();
  if (name == model_name) return std::nullopt;
  ApiError error = Problem(absl::StrCat("the model ", Quote(name),
                                        " is not here; this server has ",
                                        Quote(model_name)));
  error.status = 404;
  error.param = "model";
  error.code = "model_not_found";
  return error;
}

std::vector<int32_t> ReadIds(const std::string& field, const json& value,
                             FieldReader& reader) {
  constexpr uint32_t kMaxInt32 = std::numeric_limits<int32_t>::max();
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (size_t i = 0; i < value.size() && !reader.failed(); ++i) {
    // The field's name is built only for an error: a prompt may be long.
    const json& id = value[i];
    if (id.is_number_unsigned() && id.get<uint64_t>() <= kMaxInt32) {
      ids.push_back(static_cast<int32_t>(id.get<uint32_t>()));
    } else {
      reader.Unexpected(absl::StrCat(field, "[", i, "]"), id, reader.TokenId());
    }
  }
  return ids;
}

}  // namespace recurve
