#ifndef RECURVE_ENGINE_CHECKPOINT_JSON_READER_H_
#define RECURVE_ENGINE_CHECKPOINT_JSON_READER_H_

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace recurve {

// Typed, checked access to one JSON object of a configuration file. Every error
// is InvalidArgument and names file, path, the value found and what is
// supported: "config.json: layers[3].kv_rank is 9; expected 1 to 4".
//
// A null counts as absent. Types do not convert: 8.0 is not an integer and "8"
// is not a number; an integer is accepted as a double. All limits are
// inclusive. Defaults are returned unchecked.
//
// Copies are cheap and share the document, which lives as long as any of them.
// Thread safety: immutable, so any thread may read.
class JsonObject {
 public:
  // `value` must be an object; `path` is its location in the file and is empty
  // for the whole file.
  static absl::StatusOr<JsonObject> Make(std::string file, nlohmann::json value,
                                         std::string path = "");

  const std::string& file() const;
  const std::string& path() const { return path_; }

  bool Has(const std::string& key) const;
  // Whether the key is there, with null.
  bool IsNull(const std::string& key) const;
  // Whether `other` has an equal value there; both may lack it.
  bool SameAs(const JsonObject& other, const std::string& key) const;
  // The object as text: equal for equal contents.
  std::string text() const;
  // Sorted; null members are omitted.
  std::vector<std::string> keys() const;

  absl::StatusOr<int64_t> Int(const std::string& key, int64_t min,
                              int64_t max) const;
  absl::StatusOr<int64_t> IntOr(const std::string& key, int64_t default_value,
                                int64_t min, int64_t max) const;

  absl::StatusOr<double> Double(
      const std::string& key,
      double min = std::numeric_limits<double>::lowest(),
      double max = std::numeric_limits<double>::max()) const;
  absl::StatusOr<double> DoubleOr(
      const std::string& key, double default_value,
      double min = std::numeric_limits<double>::lowest(),
      double max = std::numeric_limits<double>::max()) const;

  absl::StatusOr<bool> Bool(const std::string& key) const;
  absl::StatusOr<bool> BoolOr(const std::string& key, bool default_value) const;

  absl::StatusOr<std::string> String(const std::string& key) const;
  absl::StatusOr<std::string> StringOr(const std::string& key,
                                       const std::string& default_value) const;
  // One of `choices`. Without a default the key is required.
  absl::StatusOr<std::string> StringOneOf(
      const std::string& key, const std::vector<std::string>& choices,
      const std::optional<std::string>& default_value = std::nullopt) const;

  // A list of exactly `expected_size` numbers.
  absl::StatusOr<std::vector<double>> DoubleList(const std::string& key,
                                                 int64_t expected_size) const;
  // A list of integers; a single integer reads as a list of one, as in
  // eos_token_id.
  absl::StatusOr<std::vector<int64_t>> IntList(const std::string& key,
                                               int64_t min, int64_t max) const;
  absl::StatusOr<std::vector<std::string>> StringList(
      const std::string& key) const;
  absl::StatusOr<std::vector<JsonObject>> ObjectList(
      const std::string& key) const;
  absl::StatusOr<JsonObject> Object(const std::string& key) const;
  // An object whose values are all strings.
  absl::StatusOr<std::map<std::string, std::string>> StringMap(
      const std::string& key) const;

  // An error that names the first key outside `known` and lists `known`.
  absl::Status CheckNoUnknownKeys(const std::vector<std::string>& known) const;

  // "FILE: PATH.KEY PROBLEM", for checks that only the caller can make.
  absl::Status Invalid(const std::string& key, absl::string_view problem) const;

 private:
  struct Document;

  JsonObject(std::shared_ptr<const Document> document,
             const nlohmann::json* object, std::string path);

  // Null if the key is absent or null.
  const nlohmann::json* Find(const std::string& key) const;
  // `found` may be null: the key is missing.
  absl::Status Unexpected(const std::string& key, const nlohmann::json* found,
                          absl::string_view expected) const;
  // The list under `key`, or an error that asks for `expected`.
  absl::StatusOr<const nlohmann::json*> List(const std::string& key,
                                             absl::string_view expected) const;
  absl::StatusOr<int64_t> IntOf(const std::string& key,
                                const nlohmann::json* found, int64_t min,
                                int64_t max) const;

  std::shared_ptr<const Document> document_;
  const nlohmann::json* object_;  // inside *document_
  std::string path_;
};

// Parses the text of a file whose root is an object, at most 64 levels deep.
absl::StatusOr<JsonObject> ParseJsonObject(const std::string& file,
                                           absl::string_view text);

// Refuses files of more than `max_bytes` bytes before reading them.
absl::StatusOr<JsonObject> LoadJsonFile(const std::string& path,
                                        int64_t max_bytes);

}  // namespace recurve

#endif  // RECURVE_ENGINE_CHECKPOINT_JSON_READER_H_
