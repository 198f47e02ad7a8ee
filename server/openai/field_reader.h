#ifndef RECURVE_SERVER_OPENAI_FIELD_READER_H_
#define RECURVE_SERVER_OPENAI_FIELD_READER_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/checkpoint/json_parse.h"
#include "engine/checkpoint/quote.h"
#include "nlohmann/json.hpp"
#include "server/openai/openai.h"

namespace recurve {

// Parses a body into a JSON object of bounded size. `ids` is the member that
// may have lists of token ids, each of at most `max_ids`, which is `limit` in
// errors; they do not count as values. Objects are not allowed in it.
std::optional<ApiError> ParseBody(absl::string_view body, absl::string_view ids,
                                  int64_t max_ids, absl::string_view limit,
                                  nlohmann::json* object);
// As above, for a body without such a member, and with these limits.
std::optional<ApiError> ParseBody(absl::string_view body, int max_depth,
                                  int max_values, nlohmann::json* object);

// Nothing for a value that is not whole or not of 64 bits. JSON has one kind of
// number, and some clients write 16 as 16.0: beyond 2^53, where a fraction may
// be lost, such values are nothing too.
std::optional<int64_t> WholeNumber(const nlohmann::json& value);

// Reads one JSON object member by member; keeps the first error.
class FieldReader {
 public:
  explicit FieldReader(int64_t vocab_size) : vocab_size_(vocab_size) {}
  int64_t vocab_size() const { return vocab_size_; }

  bool failed() const { return error_.has_value(); }
  std::optional<ApiError> TakeError() { return std::move(error_); }

  void Fail(absl::string_view field, absl::string_view problem) {
    if (error_) return;
    error_.emplace();
    error_->message = absl::StrCat(field, " ", problem);
    error_->param = std::string(field.substr(0, field.find_first_of("[.")));
  }
  void FailUnknown(const std::string& key) {
    if (error_) return;
    error_.emplace();
    error_->message = absl::StrCat(Quote(key), " is no option of this server");
    error_->param = key;
  }
  void Unexpected(absl::string_view field, const nlohmann::json& value,
                  absl::string_view expected) {
    Fail(field,
         absl::StrCat("is ", DescribeJson(value), "; expected ", expected));
  }

  // The expected form of a token id. The engine reports ids outside the
  // vocabulary, once it knows the lengths of all prompts.
  std::string TokenId() const {
    return absl::StrCat("a token id from 0 to ", vocab_size_ - 1);
  }

  bool Bool(absl::string_view field, const nlohmann::json& value) {
    if (value.is_boolean()) return value.get<bool>();
    Unexpected(field, value, "true or false");
    return false;
  }
  // The engine checks the range as well, but on a float: 1.0000001 would be
  // "1", and 1e39 "inf".
  float Float(absl::string_view field, const nlohmann::json& value,
              const OptionRange& range) {
    return Float(field, value, range,
                 absl::StrCat(range.min, " to ", range.max));
  }
  float Float(absl::string_view field, const nlohmann::json& value,
              const OptionRange& range, absl::string_view expected) {
    if (!value.is_number()) {
      Unexpected(field, value, "a number");
      return 0;
    }
    const double number = value.get<double>();
    if (number >= range.min && number <= range.max) {
      return static_cast<float>(number);
    }
    Unexpected(field, value, expected);
    return 0;
  }
  int64_t Int(absl::string_view field, const nlohmann::json& value, int64_t min,
              int64_t max) {
    const std::optional<int64_t> number = WholeNumber(value);
    if (number && *number >= min && *number <= max) return *number;
    Unexpected(field, value,
               absl::StrCat("an integer from ", min, " to ", max));
    return min;
  }
  std::string String(absl::string_view field, const nlohmann::json& value) {
    if (value.is_string()) return value.get_ref<const std::string&>();
    Unexpected(field, value, "a string");
    return "";
  }

 private:
  const int64_t vocab_size_;
  std::optional<ApiError> error_;
};

// The error if `value`, the member "model", is not the model that is served;
// the reader's if it is no string.
std::optional<ApiError> CheckModel(FieldReader& reader,
                                   const nlohmann::json& value,
                                   const std::string& model_name);

// A list of token ids, without those that are beyond the vocabulary.
std::vector<int32_t> ReadIds(const std::string& field,
                             const nlohmann::json& value, FieldReader& reader);

}  // namespace recurve

#endif  // RECURVE_SERVER_OPENAI_FIELD_READER_H_
