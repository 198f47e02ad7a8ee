#include "engine/checkpoint/json_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/checkpoint/json_parse.h"
#include "engine/checkpoint/mapped_file.h"
#include "engine/checkpoint/quote.h"
#include "nlohmann/json.hpp"

namespace recurve {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;

// "1 to 4", "at least 1".
std::string RangeText(int64_t min, int64_t max) {
  if (max == std::numeric_limits<int64_t>::max()) {
    return absl::StrCat("at least ", min);
  }
  return absl::StrCat(min, " to ", max);
}

// "list[2]" for the third element of a list.
std::string Element(const std::string& key, size_t index) {
  return absl::StrCat(key, "[", index, "]");
}

}  // namespace

struct JsonObject::Document {
  std::string file;
  json root;
};

JsonObject::JsonObject(std::shared_ptr<const Document> document,
                       const json* object, std::string path)
    : document_(std::move(document)), object_(object), path_(std::move(path)) {}

absl::StatusOr<JsonObject> JsonObject::Make(std::string file, json value,
                                            std::string path) {
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": ", path.empty() ? "the top level" : path, " is ",
                     DescribeJson(value), "; expected an object"));
  }
  auto document = std::make_shared<const Document>(
      Document{std::move(file), std::move(value)});
  const json* root = &document->root;
  return JsonObject(std::move(document), root, std::move(path));
}

const std::string& JsonObject::file() const { return document_->file; }

bool JsonObject::Has(const std::string& key) const {
  return Find(key) != nullptr;
}

bool JsonObject::SameAs(const JsonObject& other, const std::string& key) const {
  const nlohmann::json* const a = Find(key);
  const nlohmann::json* const b = other.Find(key);
  return a == nullptr || b == nullptr ? a == b : *a == *b;
}

bool JsonObject::IsNull(const std::string& key) const {
  const auto it = object_->find(key);
  return it != object_->end() && it->is_null();
}

const json* JsonObject::Find(const std::string& key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

absl::Status JsonObject::Invalid(const std::string& key,
                                 absl::string_view problem) const {
  return absl::InvalidArgumentError(absl::StrCat(
      file(), ": ", path_, path_.empty() ? "" : ".", key, " ", problem));
}

absl::Status JsonObject::Unexpected(const std::string& key, const json* found,
                                    absl::string_view expected) const {
  return Invalid(
      key,
      absl::StrCat(found == nullptr ? std::string("is missing")
                                    : absl::StrCat("is ", DescribeJson(*found)),
                   "; expected ", expected));
}

absl::StatusOr<int64_t> JsonObject::IntOf(const std::string& key,
                                          const json* found, int64_t min,
                                          int64_t max) const {
  int64_t value = 0;
  if (found == nullptr || !ReadInt(*found, &value)) {
    return Unexpected(key, found,
                      absl::StrCat("an integer, ", RangeText(min, max)));
  }
  if (value < min || value > max) {
    return Unexpected(key, found, RangeText(min, max));
  }
  return value;
}

absl::StatusOr<int64_t> JsonObject::Int(const std::string& key, int64_t min,
                                        int64_t max) const {
  return IntOf(key, Find(key), min, max);
}

absl::StatusOr<int64_t> JsonObject::IntOr(const std::string& key,
                                          int64_t default_value, int64_t min,
                                          int64_t max) const {
  if (!Has(key)) return default_value;
  return Int(key, min, max);
}

absl::StatusOr<double> JsonObject::Double(const std::string& key, double min,
                                          double max) const {
  const json* found = Find(key);
  const bool whole_range = min == std::numeric_limits<double>::lowest() &&
                           max == std::numeric_limits<double>::max();
  const std::string range = whole_range ? "" : absl::StrCat(min, " to ", max);
  if (found == nullptr || !found->is_number()) {
    return Unexpected(key, found,
                      absl::StrCat("a number", whole_range ? "" : ", ", range));
  }
  const double value = found->get<double>();
  // Written so that a NaN fails too: a value built in code may contain one.
  if (!(value >= min && value <= max)) {
    return Unexpected(key, found, whole_range ? "a finite number" : range);
  }
  return value;
}

absl::StatusOr<double> JsonObject::DoubleOr(const std::string& key,
                                            double default_value, double min,
                                            double max) const {
  if (!Has(key)) return default_value;
  return Double(key, min, max);
}

absl::StatusOr<bool> JsonObject::Bool(const std::string& key) const {
  const json* found = Find(key);
  if (found == nullptr || !found->is_boolean()) {
    return Unexpected(key, found, "true or false");
  }
  return found->get<bool>();
}

absl::StatusOr<bool> JsonObject::BoolOr(const std::string& key,
                                        bool default_value) const {
  if (!Has(key)) return default_value;
  return Bool(key);
}

absl::StatusOr<std::string> JsonObject::String(const std::string& key) const {
  const json* found = Find(key);
  if (found == nullptr || !found->is_string()) {
    return Unexpected(key, found, "a string");
  }
  return found->get<std::string>();
}

absl::StatusOr<std::string> JsonObject::StringOr(
    const std::string& key, const std::string& default_value) const {
  if (!Has(key)) return default_value;
  return String(key);
}

absl::StatusOr<std::string> JsonObject::StringOneOf(
    const std::string& key, const std::vector<std::string>& choices,
    const std::optional<std::string>& default_value) const {
  const json* found = Find(key);
  if (found == nullptr && default_value.has_value()) return *default_value;
  if (found != nullptr && found->is_string()) {
    const std::string value = found->get<std::string>();
    if (std::find(choices.begin(), choices.end(), value) != choices.end()) {
      return value;
    }
  }
  return Unexpected(key, found,
                    absl::StrCat("one of: ", absl::StrJoin(choices, ", ")));
}

absl::StatusOr<const json*> JsonObject::List(const std::string& key,
                                             absl::string_view expected) const {
  const json* found = Find(key);
  if (found == nullptr || !found->is_array()) {
    return Unexpected(key, found, expected);
  }
  return found;
}

absl::StatusOr<std::vector<double>> JsonObject::DoubleList(
    const std::string& key, int64_t expected_size) const {
  const std::string expected =
      absl::StrCat("a list of ", expected_size, " numbers");
  RECURVE_ASSIGN_OR_RETURN(const json* list, List(key, expected));
  if (static_cast<int64_t>(list->size()) != expected_size) {
    return Unexpected(key, list, expected);
  }
  std::vector<double> values;
  for (const json& element : *list) {
    if (!element.is_number()) {
      return Unexpected(Element(key, values.size()), &element, "a number");
    }
    values.push_back(element.get<double>());
  }
  return values;
}

absl::StatusOr<std::vector<int64_t>> JsonObject::IntList(const std::string& key,
                                                         int64_t min,
                                                         int64_t max) const {
  const json* found = Find(key);
  std::vector<int64_t> values;
  if (found == nullptr || !found->is_array()) {
    RECURVE_ASSIGN_OR_RETURN(const int64_t value, IntOf(key, found, min, max));
    values.push_back(value);
    return values;
  }
  for (const json& element : *found) {
    RECURVE_ASSIGN_OR_RETURN(
        const int64_t value,
        IntOf(Element(key, values.size()), &element, min, max));
    values.push_back(value);
  }
  return values;
}

absl::StatusOr<std::vector<std::string>> JsonObject::StringList(
    const std::string& key) const {
  RECURVE_ASSIGN_OR_RETURN(const json* list, List(key, "a list of strings"));
  std::vector<std::string> values;
  for (const json& element : *list) {
    if (!element.is_string()) {
      return Unexpected(Element(key, values.size()), &element, "a string");
    }
    values.push_back(element.get<std::string>());
  }
  return values;
}

absl::StatusOr<std::vector<JsonObject>> JsonObject::ObjectList(
    const std::string& key) const {
  RECURVE_ASSIGN_OR_RETURN(const json* list, List(key, "a list of objects"));
  std::vector<JsonObject> objects;
  for (const json& element : *list) {
    const std::string name = Element(key, objects.size());
    if (!element.is_object()) return Unexpected(name, &element, "an object");
    objects.push_back(
        JsonObject(document_, &element,
                   absl::StrCat(path_, path_.empty() ? "" : ".", name)));
  }
  return objects;
}

absl::StatusOr<JsonObject> JsonObject::Object(const std::string& key) const {
  const json* found = Find(key);
  if (found == nullptr || !found->is_object()) {
    return Unexpected(key, found, "an object");
  }
  return JsonObject(document_, found,
                    absl::StrCat(path_, path_.empty() ? "" : ".", key));
}

absl::StatusOr<std::map<std::string, std::string>> JsonObject::StringMap(
    const std::string& key) const {
  RECURVE_ASSIGN_OR_RETURN(const JsonObject object, Object(key));
  std::map<std::string, std::string> values;
  for (const auto& item : object.object_->items()) {
    if (!item.value().is_string()) {
      return object.Unexpected(Quote(item.key()), &item.value(), "a string");
    }
    values[item.key()] = item.value().get<std::string>();
  }
  return values;
}

std::string JsonObject::text() const { return object_->dump(); }

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> keys;
  for (const auto& item : object_->items()) {
    if (!item.value().is_null()) keys.push_back(item.key());
  }
  return keys;
}

absl::Status JsonObject::CheckNoUnknownKeys(
    const std::vector<std::string>& known) const {
  for (const auto& item : object_->items()) {
    if (item.value().is_null()) continue;  // counts as absent
    if (std::find(known.begin(), known.end(), item.key()) == known.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file(), ": ", path_.empty() ? "the top level" : path_,
                       " has the unknown key ", Quote(item.key()),
                       "; supported: ", absl::StrJoin(known, ", ")));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<JsonObject> ParseJsonObject(const std::string& file,
                                           absl::string_view text) {
  RECURVE_ASSIGN_OR_RETURN(json value, ParseJson(text, file, kMaxDepth));
  return JsonObject::Make(file, std::move(value));
}

absl::StatusOr<JsonObject> LoadJsonFile(const std::string& path,
                                        int64_t max_bytes) {
  RECURVE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const int64_t size = static_cast<int64_t>(file.bytes().size());
  if (size > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " holds ", size, " bytes; expected at most ", max_bytes));
  }
  RECURVE_RETURN_IF_ERROR(CheckNotLfsPointer(path, file.bytes()));
  return ParseJsonObject(path, file.bytes());
}

}  // namespace recurve
