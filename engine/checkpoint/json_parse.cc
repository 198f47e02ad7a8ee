#include "engine/checkpoint/json_parse.h"

#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/checkpoint/quote.h"
#include "nlohmann/json.hpp"

namespace recurve {
namespace {

using nlohmann::json;

// Builds the value from parser events. Returning false from an event ends the
// parse; error() then says why.
class StrictBuilder : public nlohmann::json_sax<json> {
 public:
  StrictBuilder(int max_depth, const JsonFilter& filter)
      : max_depth_(max_depth), filter_(filter) {}

  bool null() override { return Add(json()); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override {
    return Add(value);
  }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t& value) override { return Add(std::move(value)); }

  bool start_object(size_t) override { return Open(json::object()); }
  bool start_array(size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    Frame& top = open_.back();
    if (top.container->contains(name)) {
      error_ =
          absl::StrCat(Path(), " has the key ", Quote(name), " more than once");
      return false;
    }
    top.key = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string& last_token,
                   const json::exception& /*error*/) override {
    // The library's own text may quote input of any size and bytes.
    error_ = absl::StrCat("not valid JSON at byte ", position, ", near ",
                          Quote(last_token));
    return false;
  }

  const std::string& error() const { return error_; }
  json TakeValue() { return std::move(root_); }

 private:
  struct Frame {
    json* container;  // object or list, not yet closed
    std::string key;  // of the member being read; objects only
  };

  json* Insert(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Frame& top = open_.back();
    if (top.container->is_array()) {
      top.container->push_back(std::move(value));
      return &top.container->back();
    }
    json& member = (*top.container)[top.key];
    member = std::move(value);
    return &member;
  }

  bool Add(json value) {
    if (!Pass(value)) return false;
    Insert(std::move(value));
    return true;
  }

  bool Pass(const json& value) {
    if (filter_ == nullptr) return true;
    const std::string none;
    if (filter_(open_.empty() ? none : open_.front().key, value)) return true;
    error_ = "not as expected";
    return false;
  }

  bool Open(json empty) {
    if (!Pass(empty)) return false;
    if (static_cast<int>(open_.size()) == max_depth_) {
      error_ = absl::StrCat("nested deeper than ", max_depth_,
                            " levels inside ", Quote(Path()));
      return false;
    }
    // A container does not change while a child of it is open, so the pointer
    // stays valid until the child is closed.
    json* container = Insert(std::move(empty));
    open_.push_back({container, ""});
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  // Path of the innermost open container: "layers[3].position".
  std::string Path() const {
    std::string path;
    for (size_t i = 0; i + 1 < open_.size(); ++i) {
      if (open_[i].container->is_array()) {
        absl::StrAppend(&path, "[", open_[i].container->size() - 1, "]");
      } else {
        absl::StrAppend(&path, path.empty() ? "" : ".", open_[i].key);
      }
    }
    return path.empty() ? "the top level" : path;
  }

  const int max_depth_;
  const JsonFilter& filter_;
  json root_;
  std::vector<Frame> open_;
  std::string error_;
};

}  // namespace

absl::StatusOr<json> ParseJson(absl::string_view text, const std::string& where,
                               int max_depth, const JsonFilter& filter) {
  // The library treats a NUL as the end of the text and would ignore the rest.
  const size_t nul = text.find('\0');
  if (nul != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": not valid JSON: a NUL at byte ", nul + 1));
  }
  StrictBuilder builder(max_depth, filter);
  if (!json::sax_parse(text.data(), text.data() + text.size(), &builder)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": ", builder.error()));
  }
  return builder.TakeValue();
}

bool ReadInt(const json& value, int64_t* out) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() >
          static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return false;
  }
  *out = value.get<int64_t>();
  return true;
}

std::string DescribeJson(const json& value) {
  switch (value.type()) {
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return absl::StrCat("a list of ", value.size());
    case json::value_t::string:
      return Quote(value.get_ref<const std::string&>());
    default:
      return value.dump();  // null, a boolean or a number: short
  }
}

}  // namespace recurve
