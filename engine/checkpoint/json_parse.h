#ifndef RECURVE_ENGINE_CHECKPOINT_JSON_PARSE_H_
#define RECURVE_ENGINE_CHECKPOINT_JSON_PARSE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace recurve {

// Parses one JSON value, strictly: valid UTF-8, no duplicate keys in an object
// (the library alone would keep the last), only white space after the value, no
// number beyond double, and objects and lists at most `max_depth` deep. Throws
// no exceptions; memory is bounded by a small multiple of the text.
//
// `where` begins every error message: the file, and the part of it.
//
// `filter`, if given, is called for each value before it is stored (a list or
// an object at its start) with the member of the outermost object that contains
// it. False ends the parse with an error, so that untrusted input that will be
// refused is not built first.
using JsonFilter =
    std::function<bool(const std::string& member, const nlohmann::json& value)>;
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text,
                                         const std::string& where,
                                         int max_depth,
                                         const JsonFilter& filter = nullptr);

// False unless `value` is an integer within int64.
bool ReadInt(const nlohmann::json& value, int64_t* out);

// A value as shown in error messages: "9", "'silu'", "a list of 3".
std::string DescribeJson(const nlohmann::json& value);

}  // namespace recurve

#endif  // RECURVE_ENGINE_CHECKPOINT_JSON_PARSE_H_
